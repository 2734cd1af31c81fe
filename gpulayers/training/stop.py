"""Ctrl-C and SIGTERM: noted when they come, obeyed between two steps."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """While it is entered, the first SIGINT or SIGTERM is only noted in `received`; a second one has its usual effect.

    aloud: say so on stderr; of several ranks that get the signal one is enough.

    Python handles signals in the main thread only, so in another thread nothing is caught.
    """

    def __init__(self, aloud: bool = True) -> None:
        self.aloud = aloud
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.__exit__()
        if not self.aloud:
            return
        with contextlib.suppress(OSError):  # not print: the signal may have come in the middle of another one
            os.write(2, b"\nstopping after this step; once more leaves at once\n")
