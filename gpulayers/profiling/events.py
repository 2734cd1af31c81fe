"""Times of all kernels without a profiler: a CUDA event before and one after each launch.

It needs no permission and no tool. Each kernel says how many bytes it has to move (`cuda.work_of`), and a copy of the
same run says how many the memory can do, so the share of the bandwidth comes from event times alone. An op that
launches no kernel of ours (a matrix product, array code) is timed as a whole.

A GPU that waits for the host between two events adds the wait: below some 10 us a row says "at most".
"""

import threading
import time
from typing import Any

from gpulayers.backend import Array, array_module, device_of, empty
from gpulayers.cuda import Work, bytes_of, work_of
from gpulayers.profiling.ranges import Range, place
from gpulayers.profiling.table import Key, Profile, Row

MOST_PENDING = 4096  # pairs of events between two waits


class Events:
    """Recorder for the device of the array `like`. On a GPU from one thread only, as kernels are launched.

    On the emulated device launches and bytes are counted, and nothing is timed: its seconds are the emulator's.
    On NumPy the ops are timed by the clock.
    """

    def __init__(self, like: Array) -> None:
        self.device = device_of(like)
        self.steps = 0
        self._like = like
        self._clock = _clock(like)
        self._rows: dict[Key, Row] = {}
        self._threads = _OfThread()
        self._first = self._threads.ranges  # of the thread that records: what others do outside any layer, it waits for
        self._seen: set[int] = set()  # threads that have counted
        self._lock = threading.Lock()  # of the rows, and of what is pending
        self._pending: list[tuple[Row, Any, Any]] = []

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        self._threads.ranges.append(one)
        if one.kind in ("op", "loss", "launch"):
            work = work_of(one.name, args) if one.kind == "launch" else _work_of_op(one.name, args)
            self._threads.begun.append((self._threads.counted, self._clock.now(), work))

    def pop(self, result: Any = None) -> None:
        mine = self._threads
        one = mine.ranges[-1]
        if one.kind in ("op", "loss", "launch"):
            end = self._clock.now()  # before the book-keeping
            before, start, work = mine.begun.pop()
            if one.kind == "launch":
                self._count(one.name, work, (start, end))
            elif mine.counted == before:  # nothing inside has been counted
                results = result if isinstance(result, tuple) else (result,)
                self._count(one.text, work._replace(bytes=work.bytes + bytes_of(*results)), (start, end))
        mine.ranges.pop()
        self.steps += one.kind == "step"

    def _count(self, kernel: str, work: Work, times: tuple[Any, Any]) -> None:
        self._threads.counted += 1
        where = place(self._threads.ranges)
        key = Key(*(where if any(where) else place(self._first)), kernel)
        with self._lock:
            self._seen.add(threading.get_ident())
            row = self._rows.setdefault(key, Row())
            row.add(None, work.bytes, work.operations or None)
            if self.device != "emulated":
                self._pending.append((row, *times))
                if len(self._pending) >= MOST_PENDING:
                    self._resolve()

    def _resolve(self) -> None:
        self._clock.wait()
        for row, start, end in self._pending:
            row.add(self._clock.seconds(start, end), None, None, launches=0)
        self._pending.clear()

    def profile(self) -> Profile:
        """What was found; waits for the device, and measures a copy."""
        self._resolve()
        if self.device == "emulated":
            return Profile(self._rows, self.steps, notes=("the emulated device counts; it has no times of a GPU",))
        notes = ("several threads at once: launches and ms are their sum",) if len(self._seen) > 1 else ()
        return Profile(self._rows, self.steps, copy_bandwidth(self._like), "a copy measured in this run", notes)


class _OfThread(threading.local):
    """ranges: those that are open. begun: of open calls, (calls counted before, event, work). counted: calls."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.begun: list[tuple[int, Any, Work]] = []
        self.counted = 0


def _work_of_op(name: str, args: tuple[Any, ...]) -> Work:
    """args: the op and its arguments. The result is not known yet."""
    if name == "matmul":
        return Work(bytes_of(*args), 2 * args[1].size * args[2].shape[-1])
    return Work(bytes_of(*args))


class Host:
    """Moments of the host's clock."""

    def now(self) -> float:
        return time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds(self, start: float, end: float) -> float:
        return end - start


class Device:
    """Moments on the current stream of a GPU."""

    def __init__(self, xp: Any) -> None:
        self._cuda = xp.cuda

    def now(self) -> Any:
        event = self._cuda.Event()
        event.record()
        return event

    def wait(self) -> None:
        self._cuda.Device().synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        return self._cuda.get_elapsed_time(start, end) / 1e3


def _clock(like: Array) -> Host | Device:
    return Host() if device_of(like) == "numpy" else Device(array_module(like))


def copy_bandwidth(like: Array, megabytes: int = 0, repeats: int = 10) -> float:
    """Bytes read plus written a second by a plain copy on the device of `like`; the median of `repeats`."""
    clock = _clock(like)
    size = (megabytes or (128 if isinstance(clock, Host) else 1024)) << 20
    source, target = (empty(size, "uint8", like=like) for _ in range(2))
    source.fill(1)
    target[...] = source  # page faults, first use
    times = []
    for _ in range(repeats):
        start = clock.now()
        target[...] = source
        end = clock.now()
        clock.wait()
        times.append(clock.seconds(start, end))
    return 2 * size / sorted(times)[repeats // 2]
