"""Data-parallel training: several processes, each with its piece of every batch. docs/parallel.md shows how to run."""

from gpulayers.parallel.communicator import ALONE, Alone, Communicator, Elsewhere, ParallelError
from gpulayers.parallel.leave import leave, part, together
from gpulayers.parallel.mpi import MPICommunicator, MPIMissing, connect

__all__ = [
    "ALONE",
    "Alone",
    "Communicator",
    "Elsewhere",
    "MPICommunicator",
    "MPIMissing",
    "ParallelError",
    "connect",
    "leave",
    "part",
    "together",
]
