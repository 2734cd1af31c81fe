"""Data-parallel training: several processes, each with its piece of every batch. docs/parallel.md shows how to run."""

from gpulayers.parallel.communicator import ALONE, Alone, Communicator, Elsewhere, ParallelError
from gpulayers.parallel.leave import leave
from gpulayers.parallel.mpi import MPICommunicator, MPIMissing, connect
from gpulayers.parallel.together import end_together, together

__all__ = [
    "ALONE",
    "Alone",
    "Communicator",
    "Elsewhere",
    "MPICommunicator",
    "MPIMissing",
    "ParallelError",
    "connect",
    "end_together",
    "leave",
    "together",
]
