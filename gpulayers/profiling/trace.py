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
from typing import Any

from gpulayers.backend import is_array
from gpulayers.cuda import work_of
from gpulayers.layers.layer import Layer
from gpulayers.profiling.ranges import Range, Ranges
from gpulayers.storage import FileError, StrPath, replacing

MOST = 250_000  # events: a file of some 50 MB, which a browser still opens with ease


class Trace:
    """Recorder of ranges with their times; `write` makes the file. After `most` events it records no more.

    On a GPU these are the times at which the host hands out the work, not those in which the GPU does it.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.full = False
        self._events: list[tuple[int, Range, dict[str, Any], int, int]] = []  # thread, ..., start and length in ns
        self._threads: dict[int, str] = {}
        self._local = threading.local()
        self._origin = time.perf_counter_ns()

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        self._stack().append(None if self.full else (one, _details(one, args), time.perf_counter_ns()))

    def pop(self, result: Any = None) -> None:
        end = time.perf_counter_ns()
        begun = self._stack().pop()
        if begun is None or self.full:
            return
        one, details, start = begun
        self._events.append((threading.get_native_id(), one, details, start - self._origin, end - start))
        self.full = len(self._events) >= self.most

    def _stack(self) -> list[tuple[Range, dict[str, Any], int] | None]:
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
                "name": one.text,
                "cat": one.kind,
                "ph": "X",
                "ts": start / 1000,
                "dur": length / 1000,
                "pid": process,
                "tid": thread,
                "args": details,
            }
            for thread, one, details, start, length in sorted(self._events, key=lambda event: event[3])
        )
        return [*head, *ranges]

    def write(self, path: StrPath) -> None:
        """The file, over any other of that name. Raises FileError."""
        with replacing(path) as file:
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
            for i, event in enumerate(self.events):
                file.write(f"{',' if i else ''}\n{json.dumps(event)}".encode())
            file.write(b"\n]}\n")


def _details(one: Range, args: tuple[Any, ...]) -> dict[str, Any]:
    """What a click on the range shows."""
    details: dict[str, Any] = {}
    if arrays := [f"{a.dtype} {list(a.shape)}" for a in args if is_array(a)]:
        details["arrays"] = ", ".join(arrays)
    if one.kind == "launch":
        details |= work_of(one.name, args)._asdict()
    return details


def check_writable(path: StrPath) -> None:
    """Raises FileError where a trace cannot be written, before a run that would lose it at its end."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"cannot write {path}: " + ("it is a folder" if path.is_dir() else f"no folder {path.parent}"))


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
