"""`connect()`: the processes that mpiexec has started, by mpi4py. NumPy arrays go by MPI, those on a GPU by NCCL.

mpi4py's calls with a capital letter are used alone: they pass the memory of arrays, and nothing is pickled.
"""

import functools
import os
import warnings
from typing import Any, NoReturn

import numpy as np

from gpulayers.backend import Array, array_module
from gpulayers.parallel.communicator import Alone, Communicator, ParallelError
from gpulayers.parallel.nccl import NCCL
from gpulayers.remedies import INSTALL

STARTED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")  # in which launchers say how many they have started


class MPIMissing(ParallelError):
    """Several processes were asked for and MPI is not there; the message is one sentence with the remedy."""


@functools.cache
def connect() -> Communicator:
    """This process among those that mpiexec has started; `Alone` without mpiexec. The same object at every call.

    From here on an exception that nobody catches ends all ranks (`parallel/leave.py`).

    Raises MPIMissing; ParallelError where mpiexec belongs to another MPI than mpi4py has found.
    """
    mpi = import_mpi()
    world = mpi.COMM_WORLD
    if world.size > 1:
        from gpulayers.parallel.leave import abort_on_exceptions

        communicator = MPICommunicator(mpi, world)
        abort_on_exceptions(communicator)
        return communicator
    started = max((int(os.environ.get(name, "1")) for name in STARTED), default=1)
    if started > 1:
        raise ParallelError(
            f"mpiexec has started {started} processes, but MPI sees one: that mpiexec belongs to another MPI than "
            f"mpi4py has found; the one of pip's mpich lies beside the python of this environment"
        )
    return Alone()


def import_mpi() -> Any:
    """mpi4py.MPI, which begins MPI. Raises MPIMissing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another MPI's mpiexec: `connect` says it
            from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise MPIMissing(f"--data-parallel needs mpi4py, which is not installed: {INSTALL['mpi']}") from error
    except (ImportError, RuntimeError) as error:  # no libmpi, or one that does not load
        raise MPIMissing(f"mpi4py finds no MPI library ({error}): {INSTALL['mpi']}") from error
    return MPI


class MPICommunicator(Communicator):
    """Ranks of an mpi4py communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        local = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.rank, self.size, self.local_rank, self.local_size = comm.rank, comm.size, local.rank, local.size
        self._mpi, self._comm = mpi, comm
        self._devices: dict[tuple[Any, int], NCCL] = {}

    def barrier(self) -> None:
        self._comm.Barrier()

    def abort(self, status: int) -> NoReturn:
        self._comm.Abort(status)
        raise SystemExit(status)

    def _sum(self, array: Array) -> None:
        if array_module(array) is not np:
            self._device(array).all_reduce(array)
        elif array.dtype.itemsize == 2:  # MPI has no such numbers
            wide = array.astype(np.float32)
            self._sum(wide)
            array[...] = wide
        else:
            self._comm.Allreduce(self._mpi.IN_PLACE, array, self._mpi.SUM)

    def _copy_from(self, array: Array, root: int) -> None:
        if array_module(array) is not np:
            self._device(array).broadcast(array, root)
        else:
            self._comm.Bcast(array.reshape(-1).view(np.uint8), root)

    def _gather(self, row: np.ndarray) -> np.ndarray:
        every = np.empty((self.size, *row.shape), row.dtype)
        self._comm.Allgather(row, every)
        return every

    def _device(self, array: Array) -> NCCL:
        """NCCL on the device of `array`, begun when its first array comes."""
        xp = array_module(array)
        place = (xp, array.device.id)
        if place not in self._devices:
            with array.device:
                self._devices[place] = NCCL(xp, self)
        return self._devices[place]
