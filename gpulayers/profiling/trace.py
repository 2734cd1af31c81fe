"""A trace file of the host's time, for ui.perfetto.dev and chrome://tracing.

The format is the Trace Event Format of Chrome: a JSON object with a list of events, here one a line; each range is a
"complete" event ("ph": "X") with its start and length in microseconds. Events of one thread nest by their times.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gpulayers.backend import is_array
from gpulayers.cuda import Work, work_of
from gpulayers.layers.layer import Layer
from gpulayers.profiling.ranges import Range, Ranges
from gpulayers.storage import FileError, StrPath, replacing

MOST = 250_000  # events: a file of some 50 MB, which a browser still opens with ease


class _Event(NamedTuple):
    """A range that has ended, between two times in ns. Its arrays are kept as their (dtype, shape) only."""

    thread: int
    range: Range
    arrays: tuple[tuple[Any, tuple[int, ...]], ...]
    work: Work | None
    start: int
    end: int

    def details(self) -> dict[str, Any]:
        """What a click on the range shows."""
        shapes = ", ".join(f"{dtype} {list(shape)}" for dtype, shape in self.arrays)
        return ({"arrays": shapes} if shapes else {}) | (self.work._asdict() if self.work else {})


class Trace:
    """Recorder of ranges with their times; `write` makes the file. After `most` events it records no more.

    On a GPU these are the times at which the host hands out the work, not those in which the GPU does it.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.full = False
        self._events: list[_Event] = []
        self._threads: dict[int, str] = {}
        self._local = threading.local()
        self._origin = time.perf_counter_ns()

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        if self.full:
            self._stack().append(None)
            return
        arrays = tuple((a.dtype, a.shape) for a in args if is_array(a))
        work = work_of(one.name, args) if one.kind == "launch" else None
        self._stack().append((one, arrays, work, time.perf_counter_ns()))

    def pop(self, result: Any = None) -> None:
        end = time.perf_counter_ns()
        begun = self._stack().pop()
        if begun is None or self.full:
            return
        self._events.append(_Event(threading.get_native_id(), *begun, end))
        self.full = len(self._events) >= self.most

    def _stack(self) -> list[tuple[Range, tuple[Any, ...], Work | None, int] | None]:
        try:
            return self._local.stack
        except AttributeError:
            self._threads[threading.get_native_id()] = threading.current_thread().name
            self._local.stack = []
            return self._local.stack

    @property
    def events(self) -> list[dict[str, Any]]:
        """As the file holds them: the names of process and threads, then the ranges by their start."""
        process = os.getpid()
        names = [("process_name", process, "gpulayers"), *(("thread_name", t, n) for t, n in self._threads.items())]
        head = [{"name": what, "ph": "M", "pid": process, "tid": t, "args": {"name": n}} for what, t, n in names]
        ranges = (
            {
                "name": event.range.text,
                "cat": event.range.kind,
                "ph": "X",
                "ts": (event.start - self._origin) / 1000,
                "dur": (event.end - event.start) / 1000,
                "pid": process,
                "tid": event.thread,
                "args": event.details(),
            }
            for event in sorted(self._events, key=lambda event: event.start)
        )
        return [*head, *ranges]

    def write(self, path: StrPath) -> None:
        """The file, over any other of that name. Raises FileError."""
        with replacing(path) as file:
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
            for i, event in enumerate(self.events):
                file.write(f"{',' if i else ''}\n{json.dumps(event)}".encode())
            file.write(b"\n]}\n")


def check_writable(path: StrPath) -> None:
    """Raises FileError where a trace cannot be written, before a run that would lose it at its end."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"cannot write {path}: " + ("it is a folder" if path.is_dir() else f"no folder {path.parent}"))
    if not os.access(path.parent, os.W_OK):  # the file is written beside and renamed
        raise FileError(f"cannot write {path}: {path.parent} is read-only")


@contextmanager
def trace(
    path: StrPath, model: Layer | None = None, optimizer: Any = None, calls: Any = (), recorder: Trace | None = None
) -> Iterator[Ranges]:
    """Record all ranges of a block into a trace file, which is written however the block ends.

    >>> with gl.profiling.trace("trace.json", model, optimizer) as ranges:
    ...     for k in range(3):
    ...         with ranges.range("step"):
    ...             ...

    Raises FileError, before the block is entered where the folder is not there.
    """
    check_writable(path)
    recorder = recorder or Trace()
    try:
        with Ranges(recorder, model, optimizer, calls) as ranges:
            yield ranges
    finally:
        recorder.write(path)
