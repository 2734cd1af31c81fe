"""`Communicator`: what data-parallel training asks of the processes that it runs in, and `Alone`, one process.

    communicator = connect()                      # parallel/mpi.py
    communicator.all_reduce(model_flat.grad)      # on every rank: the sum over all ranks, in place

Every call is one of all ranks: they make the same calls in the same order, and each waits for the others. The array
decides, as everywhere: one in host memory goes by MPI, one on a GPU by NCCL.
"""

from abc import ABC, abstractmethod
from typing import NoReturn

import numpy as np

from gpulayers.backend import Array, array_module


class ParallelError(RuntimeError):
    """Ranks that cannot work together; the message is one sentence that says why."""


class Elsewhere(Exception):
    """The end of a command on a rank where there is nothing to say, because another says it. status: to leave with."""

    def __init__(self, status: int) -> None:
        super().__init__(f"another rank says why, and leaves with status {status}")
        self.status = status


class Communicator(ABC):
    """`size` processes, of which this one is `rank`, 0 to size - 1.

    local_rank, local_size: the same among the ranks of this machine. leaving: all ranks end now, for a reason that each
    of them knows; see `parallel/together.py`.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    leaving: bool = False

    def all_reduce(self, array: Array) -> None:
        """Replace `array`, of the same shape and floating type on all ranks, by the sum over all ranks.

        All ranks get the same bits. On a GPU it is queued on the current stream, and nothing waits.
        """
        self._check(array, "all_reduce")
        if self.size > 1 and array.size:
            self._sum(array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array`, of the same shape and type on all ranks, by that of rank `root`."""
        self._check(array, "broadcast")
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast: root must be in 0..{self.size - 1}, got {root}")
        if self.size > 1 and array.size:
            self._copy_from(array, root)

    def gather(self, number: float) -> np.ndarray:
        """The number of each rank, (size,) float64, on all ranks."""
        return self._gather(np.array([number], np.float64))[:, 0]

    def gather_texts(self, text: str) -> list[str]:
        """The text of each rank, on all ranks."""
        own = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        sizes = [int(size) for size in self.gather(len(own))]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: len(own)] = own
        every = self._gather(padded)
        return [row[:n].tobytes().decode("utf-8", "surrogatepass") for row, n in zip(every, sizes, strict=True)]

    def broadcast_text(self, text: str, root: int = 0) -> str:
        """The text of rank `root`."""
        return self.gather_texts(text if self.rank == root else "")[root]

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has come here."""

    @abstractmethod
    def abort(self, status: int) -> NoReturn:
        """End all ranks at once, wherever they are."""
        raise NotImplementedError  # what returns NoReturn may not come back, not even through `super()`

    @abstractmethod
    def _sum(self, array: Array) -> None: ...

    @abstractmethod
    def _copy_from(self, array: Array, root: int) -> None: ...

    @abstractmethod
    def _gather(self, row: np.ndarray) -> np.ndarray:
        """(size, n) of rows (n,) in host memory, which are as long on all ranks."""

    def _check(self, array: Array, what: str) -> None:
        array_module(array)
        if not array.flags.c_contiguous:
            raise ValueError(f"{what} works in place on contiguous memory, got strides {array.strides}")


class Alone(Communicator):
    """One process: every sum is its own array. What runs on many ranks runs on this one with the same lines."""

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)

    def _sum(self, array: Array) -> None: ...

    def _copy_from(self, array: Array, root: int) -> None: ...

    def _gather(self, row: np.ndarray) -> np.ndarray:
        return row[None]


ALONE = Alone()
