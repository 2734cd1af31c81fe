"""Where the time goes: named ranges of a training step, and what records them.

ranges.py       the ranges: step, forward, backward, loss, optimizer, op, launch   <- start reading here
trace.py        into a Chrome / Perfetto trace file, on any machine                 (gpulayers train --trace FILE)
nvtx_ranges.py  into NVTX, for Nsight Systems and Nsight Compute
events.py       times and bytes of every kernel, by CUDA events                     (gpulayers profile events)
nsight.py       the command lines of nsys and ncu                                   (gpulayers profile nsys|ncu)
reports.py      their exported reports, read back                                   (gpulayers profile read)
                nsys_report.py from SQLite, ncu_report.py from CSV
table.py        one table for all of them
training.py     the steps of `gpulayers train` that are profiled
"""

from gpulayers.profiling.ranges import Range, Ranges, Recorder
from gpulayers.profiling.trace import Trace, trace

__all__ = ["Range", "Ranges", "Recorder", "Trace", "trace"]
