"""`NCCL`: sums of arrays that lie on GPUs, by `cupy.cuda.nccl`. One process has one GPU.

    all ranks, once:     NcclCommunicator(size, the unique id of rank 0, rank)      MPI only carries the id
    all ranks, a step:   allReduce(...) on the current stream

The call queues a kernel and returns, so it runs after the backward pass and before the optimizer's kernels because they
are on the same stream, and the host waits for none of them.
"""

import platform
from typing import Any

import numpy as np

from gpulayers.backend import Array
from gpulayers.cuda import import_nccl
from gpulayers.parallel.communicator import Communicator, ParallelError
from gpulayers.parallel.together import together
from gpulayers.remedies import INSTALL

UNIQUE_ID_BYTES = 128
DTYPES = {  # dtype -> the name of NCCL's
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
}


class NCCL:
    """xp: cupy, or the emulator's stand-in. meet: the communicator by which the ranks find each other."""

    def __init__(self, xp: Any, meet: Communicator) -> None:
        self._xp, self._nccl = xp, nccl_of(xp)
        identity = np.zeros(UNIQUE_ID_BYTES, np.uint8)
        if meet.rank == 0:
            identity[:] = np.frombuffer(self._nccl.get_unique_id(), np.uint8)
        meet.broadcast(identity)
        self._comm = self._nccl.NcclCommunicator(meet.size, identity.tobytes(), meet.rank)

    def all_reduce(self, array: Array) -> None:
        """`array`, contiguous, becomes the sum over all ranks. Queued on the current stream."""
        address, stream = array.data.ptr, self._xp.cuda.get_current_stream().ptr
        self._comm.allReduce(address, address, array.size, self._kind(array.dtype), self._nccl.NCCL_SUM, stream)

    def broadcast(self, array: Array, root: int) -> None:
        """`array`, contiguous, becomes that of rank `root`. Queued on the current stream."""
        address, stream = array.data.ptr, self._xp.cuda.get_current_stream().ptr
        self._comm.broadcast(address, address, array.nbytes, self._nccl.NCCL_UINT8, root, stream)

    def _kind(self, dtype: np.dtype) -> int:
        if dtype.name not in DTYPES:
            raise TypeError(f"all_reduce takes an array of {', '.join(DTYPES)}, got {dtype}")
        return getattr(self._nccl, DTYPES[dtype.name])


def nccl_of(xp: Any) -> Any:
    """`cupy.cuda.nccl`. Raises ParallelError, one sentence with the remedy, where CuPy could not load it."""
    nccl = import_nccl(xp)
    if not nccl.available:
        cuda = "nccl13" if xp.cuda.runtime.runtimeGetVersion() >= 13000 else "nccl12"
        raise ParallelError(f"several GPUs need NCCL, which CuPy cannot load: {INSTALL[cuda]}")
    return nccl


def use_own_gpu(xp: Any, communicator: Communicator) -> None:
    """Make the GPU of this rank the current device: number `local_rank` of those that the process sees.

    Raises ParallelError on all ranks where two of them would share one.
    """
    count = xp.cuda.runtime.getDeviceCount()
    device = communicator.local_rank % count
    xp.cuda.Device(device).use()
    places = communicator.gather_texts(f"{platform.node()}, {xp.cuda.runtime.deviceGetPCIBusId(device)}")
    with together(communicator):
        if len(set(places)) < len(places):
            raise ParallelError(
                f"{communicator.size} ranks have {len(set(places))} GPUs between them, and each needs one of its own: "
                f"start fewer by mpiexec -n, or show each process another GPU in CUDA_VISIBLE_DEVICES"
            )
