"""Streams and events. Everything runs at once, so they keep order and time and nothing else."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, ClassVar

_numbers = itertools.count(1)
_current = threading.local()


class Event:
    """A moment on a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = next(_numbers)
        self._timed, self._time = not disable_timing, None

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    @property
    def done(self) -> bool:
        """Always true."""
        return True


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two recorded events."""
    if start_event._time is None or end_event._time is None:
        raise RuntimeError("cudaErrorInvalidResourceHandle: the event was never recorded")
    if not (start_event._timed and end_event._timed):
        raise RuntimeError("cudaErrorInvalidResourceHandle: the event was made with disable_timing")
    return (end_event._time - start_event._time) * 1e3


class Stream:
    """A queue of work; here all work is done when the call returns."""

    null: ClassVar[Stream]
    ptds: ClassVar[Stream]

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, *, priority: int | None = None
    ) -> None:
        self.ptr = 0 if null else 2 if ptds else 2 + next(_numbers)
        self.is_non_blocking, self.priority = non_blocking, priority or 0
        self._outer: list[Stream] = []

    def __enter__(self) -> Stream:
        self._outer.append(get_current_stream())
        self.use()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._outer.pop().use()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def use(self) -> Stream:
        """Make it the current stream of this thread."""
        _current.stream = self
        return self

    @property
    def done(self) -> bool:
        """Always true."""
        return True

    def is_capturing(self) -> bool:
        """Never."""
        return False

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def record(self, event: Event | None = None) -> Event:
        """Record an event on this stream."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        """Call `callback(arg)` once the work before is done, which it is."""
        callback(arg)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


def get_current_stream(device_id: int = -1) -> Stream:
    """The current stream of this thread."""
    return getattr(_current, "stream", Stream.null)
