"""What stands between this machine and the GPU, with one line to mend each.

>>> from gpulayers.doctor import diagnose
>>> for finding in diagnose():
...     print(finding.check, finding.status, finding.found, finding.remedy)
"""

from gpulayers.doctor.checks import CHECKS, Finding, Status, diagnose
from gpulayers.doctor.machine import Machine

__all__ = ["CHECKS", "Finding", "Machine", "Status", "diagnose"]
