"""The stand-in for `cupy.cuda.nccl`: what data-parallel training calls, over MPI, on the stand-in's memory.

Each process that mpiexec has started is one emulated GPU. Calls run at once, as everything here does, whatever the
stream; memory is checked as kernels' accesses are. float16 and bfloat16 are added in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpulayers.emulator.allocation import find

available = True
UNIQUE_ID_BYTES = 128
NCCL_SUM = 0
NCCL_UINT8, NCCL_HALF, NCCL_FLOAT, NCCL_DOUBLE, NCCL_BFLOAT16 = 1, 6, 7, 8, 9
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = NCCL_HALF, NCCL_FLOAT, NCCL_DOUBLE

DTYPES: dict[int, Any] = {
    NCCL_UINT8: np.uint8,
    NCCL_HALF: np.float16,
    NCCL_FLOAT: np.float32,
    NCCL_DOUBLE: np.float64,
    NCCL_BFLOAT16: ml_dtypes.bfloat16,
}


class NcclError(RuntimeError):
    """What NCCL refuses."""


def get_unique_id() -> bytes:
    """128 bytes that name a communicator; here any do, for MPI knows who belongs together."""
    return np.random.default_rng().bytes(UNIQUE_ID_BYTES)


class NcclCommunicator:
    """Of the `ndev` processes that mpiexec has started, number `rank`."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
        from mpi4py import MPI

        if type(commId) is not bytes:
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        if len(commId) != UNIQUE_ID_BYTES:
            raise NcclError(f"the unique id has {len(commId)} bytes, not {UNIQUE_ID_BYTES}")
        if not 0 <= rank < ndev:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: rank {rank} of {ndev}")
        self._mpi, self._ranks = MPI, MPI.COMM_WORLD.Dup()
        identities = np.empty((self._ranks.size, UNIQUE_ID_BYTES), np.uint8)
        self._ranks.Allgather(np.frombuffer(commId, np.uint8), identities)
        if (self._ranks.size, self._ranks.rank) != (ndev, rank) or (identities != identities[0]).any():
            raise NcclError("NCCL_ERROR_INVALID_USAGE: the ranks do not have one unique id, or others are missing")

    def size(self) -> int:
        """How many there are."""
        return self._ranks.size

    def rank_id(self) -> int:
        """Which one this is."""
        return self._ranks.rank

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        """recvbuf = the sum of all ranks' sendbuf."""
        if op != NCCL_SUM:  # the one operation that gpulayers asks for; another would silently add
            raise NotImplementedError(f"the stand-in for NCCL adds; it has no operation {op}")
        source, target = memory(sendbuf, count, datatype), memory(recvbuf, count, datatype)
        total = source.astype(np.float32) if source.itemsize == 2 else source.copy()
        self._ranks.Allreduce(self._mpi.IN_PLACE, total, self._mpi.SUM)
        target[:] = total

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """recvbuff = the sendbuff of rank `root`."""
        source, target = memory(sendbuff, count, datatype), memory(recvbuff, count, datatype)
        if self._ranks.rank == root:
            target[:] = source
        self._ranks.Bcast(target.view(np.uint8), root)

    def destroy(self) -> None:
        """The end."""
        self._ranks.Free()


def memory(address: int, count: int, datatype: int) -> np.ndarray:
    """`count` numbers of device memory from `address` on. Raises NcclError where they are not all in one block."""
    allocation, kind = find(address), np.dtype(DTYPES[datatype])
    start = 0 if allocation is None else address - allocation.address
    if allocation is None or start + count * kind.itemsize > allocation.size:
        raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: {count} x {kind} at {address:#x} are not in device memory")
    return allocation.data[start : start + count * kind.itemsize].view(kind)
