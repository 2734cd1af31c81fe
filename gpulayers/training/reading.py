"""A few numbers on their way from the device to the host, while the device goes on with other work."""

import functools
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module


class Reading:
    """The values of a small array at this place in the work of the device; nothing waits until `wait()`.

    `array.get()` would wait for all work that was queued before it is called, and so for the step after. This one
    waits for the work before the Reading was made, on a stream of its own.
    """

    def __init__(self, array: Array) -> None:
        self._array, self._event = array, None
        xp = array_module(array)
        if xp is not np:
            self._event = xp.cuda.Event(disable_timing=True)
            self._event.record()

    def wait(self) -> np.ndarray:
        """The values, in host memory."""
        if self._event is None:
            return self._array
        with self._array.device:
            stream = _side_stream(array_module(self._array), self._array.device.id)
            stream.wait_event(self._event)
            return self._array.get(stream=stream)


@functools.cache
def _side_stream(xp: Any, device: int) -> Any:
    """Does not order itself after the default stream, as a blocking one would."""
    return xp.cuda.Stream(non_blocking=True)
