"""How a call is timed on a GPU: by events on a stream of its own, cold and hot, with what Python needs beside it.

Works alike for CuPy, for its emulated stand-in and for PyTorch, whose work is put on the same stream.
"""

import contextlib
import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gpulayers import cuda

Call = Callable[[], Any]


class Protocol(NamedTuple):
    """repeats: events of a median, fewer (at least 10) where they would take more than `most_seconds`.

    flush_bytes: written before each cold call, more than any L2 cache. copies: calls of a replay, which is made where
    one call takes less than `short` seconds or less time on the GPU than in Python.
    """

    warm_ups: int = 20
    repeats: int = 100
    copies: int = 50
    flush_bytes: int = 256 << 20
    short: float = 20e-6
    most_seconds: float = 2.0


class Spread(NamedTuple):
    """Seconds: median, and the 10th and 90th of 100."""

    median: float
    p10: float
    p90: float
    repeats: int


class Launches(NamedTuple):
    count: int
    counted: str  # "graph": every node of the call's captured graph. "ours": our own kernels, array code not among them


def spread(seconds: list[float]) -> Spread:
    median, p10, p90 = np.quantile(seconds, [0.5, 0.1, 0.9]).tolist()
    return Spread(median, p10, p90, len(seconds))


class Timer:
    """Times calls that put work on `stream`, which is the current one while `timer.current()` is open."""

    def __init__(self, xp: Any, protocol: Protocol, torch: Any = None) -> None:
        self.xp, self.protocol, self.torch = xp, protocol, torch
        self.stream = xp.cuda.Stream(non_blocking=True)
        with self.stream:
            self._flush = xp.empty(max(1, protocol.flush_bytes // 4), np.float32)
        self._flushes = 0

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """All work of the block, CuPy's and PyTorch's, goes to the stream."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.stream)
            if self.torch is not None:
                cuda_ = self.torch.cuda
                stack.enter_context(cuda_.stream(cuda_.ExternalStream(self.stream.ptr)))
            yield
            self.stream.synchronize()

    def cold(self, call: Call) -> Spread:
        """With the L2 cache full of other data. The write that fills it also hides what Python needs to enqueue."""
        return self._events(call, self._write_all)

    def hot(self, call: Call) -> Spread:
        """Call after call. Where Python is slower than the GPU this is Python's time."""
        return self._events(call, lambda: None)

    def _write_all(self) -> None:
        self._flushes += 1
        self._flush.fill(self._flushes % 1000)

    def _events(self, call: Call, before: Call) -> Spread:
        for _ in range(self.protocol.warm_ups):
            before()
            call()
        one = self._timed(call, before, 3)
        fit = int(self.protocol.most_seconds / max(one.median, 1e-9))
        return self._timed(call, before, max(min(10, self.protocol.repeats), min(self.protocol.repeats, fit)))

    def _timed(self, call: Call, before: Call, repeats: int) -> Spread:
        """Nothing waits between the calls, so that the GPU never does."""
        event = self.xp.cuda.Event
        pairs = [(event(), event()) for _ in range(repeats)]
        self.stream.synchronize()
        for start, end in pairs:
            before()
            start.record(self.stream)
            call()
            end.record(self.stream)
        self.stream.synchronize()
        return spread([self.xp.cuda.get_elapsed_time(start, end) / 1e3 for start, end in pairs])

    # ------------------------------------------------------------------------------------------------ short calls

    def is_short(self, hot: Spread, enqueue: float) -> bool:
        return hot.median < max(self.protocol.short, 1.5 * enqueue)

    def replay(self, call: Call) -> tuple[Spread, str]:
        """Seconds of one of `copies` calls run as a CUDA graph, "graph"; back to back, "launches", where none can be
        captured."""
        copies = self.protocol.copies

        def many() -> None:
            for _ in range(copies):
                call()

        graph = self.capture(many)
        times = self._timed(
            (lambda: graph.launch(self.stream)) if graph else many, lambda: None, min(12, self.protocol.repeats)
        )
        each = Spread(times.median / copies, times.p10 / copies, times.p90 / copies, times.repeats)
        return each, "graph" if graph else "launches"

    def capture(self, call: Call) -> Any:
        """The CUDA graph of a call, None where it cannot be captured.

        Memory that the call frees stays what the graph writes to, so nothing may be allocated while it is used.
        """
        if not hasattr(self.stream, "begin_capture"):
            return None
        self.stream.synchronize()
        self.stream.begin_capture()
        graph, done = None, False
        try:
            call()
            done = True
        except Exception as error:  # CuPy and PyTorch each have errors of their own for what cannot be captured
            print(f"  (not captured as a graph: {type(error).__name__}: {_first_line(error)})", file=sys.stderr)
        finally:
            with contextlib.suppress(RuntimeError):  # the capture was spoilt
                graph = self.stream.end_capture()
        return graph if done else None

    # ------------------------------------------------------------------------------------------------ beside the time

    def enqueue_seconds(self, call: Call) -> float:
        """What Python needs until the call has returned, the GPU not being waited for; the median."""
        seconds = []
        for i in range(min(50, self.protocol.repeats)):
            if i % 10 == 0:
                self.stream.synchronize()  # a queue that is full would make the host wait
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        self.stream.synchronize()
        return spread(seconds).median

    def launches(self, call: Call) -> Launches | None:
        """How many kernels, copies and fills one call starts. None: nothing of ours, and not to be captured."""
        graph = self.capture(call)
        if graph is not None:
            with contextlib.suppress(OSError, RuntimeError):
                return Launches(graph_nodes(graph), "graph")
        with counted_launches() as names:
            call()
        return Launches(len(names), "ours") if names else None

    def peak_bytes(self, call: Call) -> int:
        """Most memory that the pool needs for one call, its results included and what it is given not."""
        self.stream.synchronize()
        gc.collect()
        pool, scope = _fresh_pool(self.xp)
        before = pool.total_bytes()
        with scope:
            result = call()
            self.stream.synchronize()
            peak = pool.total_bytes() - before
            del result
        return peak

    def torch_peak_bytes(self, call: Call) -> int:
        cuda_ = self.torch.cuda
        cuda_.synchronize()
        before = cuda_.memory_allocated()
        cuda_.reset_peak_memory_stats()
        result = call()
        cuda_.synchronize()
        del result
        return cuda_.max_memory_allocated() - before


def _fresh_pool(xp: Any) -> tuple[Any, Any]:
    """(a memory pool that holds nothing, the block in which arrays come from it)."""
    if hasattr(xp.cuda, "using_allocator"):
        pool = xp.cuda.MemoryPool()
        return pool, xp.cuda.using_allocator(pool.malloc)
    pool = xp.get_default_memory_pool()  # the emulated device has one pool, which cuts no block into pieces
    pool.free_all_blocks()
    return pool, contextlib.nullcontext()


def poisoned(xp: Any) -> Any:
    """Block in which every new array is full of NaN: what a kernel does not write will show.

    The emulated device does so by itself.
    """
    if not hasattr(xp.cuda, "using_allocator"):
        return contextlib.nullcontext()
    pool = xp.get_default_memory_pool()

    def malloc(size: int) -> Any:
        memory = pool.malloc(size)
        if size:
            memory.memset_async(0xFF, size, xp.cuda.get_current_stream())
        return memory

    return xp.cuda.using_allocator(malloc)


@contextlib.contextmanager
def counted_launches() -> Iterator[list[str]]:
    """The names of our kernels that the block launches."""
    names: list[str] = []

    def count(function: str, args: tuple[Any, ...], run: Call) -> None:
        names.append(function)
        run()

    before, cuda.on_launch = cuda.on_launch, count
    try:
        yield names
    finally:
        cuda.on_launch = before


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def graph_nodes(graph: Any) -> int:
    """Nodes of a captured graph: kernels, copies and fills."""
    count = ctypes.c_size_t()
    if status := _driver().cuGraphGetNodes(ctypes.c_void_p(graph.graph), None, ctypes.byref(count)):
        raise RuntimeError(f"cuGraphGetNodes: error {status}")
    return count.value


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
