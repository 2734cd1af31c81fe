"""A parity certificate: float64 reference = float32 reference = fast CPU body = kernel, for every op and every layer,
and every gradient by finite differences, over inputs that hurt.

>>> from gpulayers.verify import run, table
>>> certificate = run("emulated", ["layernorm"])
>>> print(table(certificate.rows))

`gpulayers verify` is the command; docs/verify.md says how to read it and how to add the cases of an op of one's own.
"""

from gpulayers.verify.certificate import Certificate, UnknownName, run, summary, table, to_json
from gpulayers.verify.discover import find_layers, find_ops
from gpulayers.verify.result import Row

__all__ = ["Certificate", "Row", "UnknownName", "find_layers", "find_ops", "run", "summary", "table", "to_json"]
