"""`Growing`: an array that gets longer along one axis, without being copied each time, and is a value all the same.

    a = Growing(x, axis=2)          # x: (B, K, S, d)
    b = a.append(y)                 # rows of a, then those of y; a is still what it was
    c = a.append(z)                 # and so is b

Behind it lies a buffer with room at its end. `append` writes into that room if nobody has done so yet, and the new
value sees more of the same buffer than the old one; what an old value sees is never written again. Where the room is
taken (c above) or too small, the rows are copied into a buffer twice as large. So n appends of one row copy less than
2 n rows in all, and whoever goes back to an old value pays for one copy.
"""

import threading

import numpy as np

from gpulayers.backend import Array, array_module, device_of, empty, to_device

LEAST = 16  # rows of the smallest buffer


class _Buffer:
    """Memory that several values see the beginning of. used: rows that belong to one of them."""

    __slots__ = ("array", "lock", "used")

    def __init__(self, array: Array, used: int) -> None:
        self.array, self.used, self.lock = array, used, threading.Lock()

    def claim(self, start: int, stop: int, room: int) -> bool:
        """Whether rows start..stop - 1 were free; they belong to the caller then."""
        with self.lock:
            if self.used != start or stop > room:
                return False
            self.used = stop
            return True


class Growing:
    """The rows of `array` along `axis`; axis 0 is the batch. The array itself is not copied, and not written."""

    __slots__ = ("_buffer", "axis", "length")

    def __init__(self, array: Array, axis: int) -> None:
        self.axis, self.length = axis, array.shape[axis]
        self._buffer = _Buffer(array, self.length)

    @property
    def rows(self) -> Array:
        """A view of all rows. Do not write into it."""
        return self._view(self._buffer.array, 0, self.length)

    def append(self, more: Array) -> "Growing":
        """This value's rows and then `more`, which is copied. Raises ValueError where the other axes differ."""
        array, start, stop = self._buffer.array, self.length, self.length + more.shape[self.axis]
        array_module(array, more)
        if self._other_axes(more) != self._other_axes(array) or more.dtype != array.dtype:
            raise ValueError(
                f"Growing.append takes {array.dtype} rows along axis {self.axis} of {self.rows.shape}, "
                f"got {more.dtype} {more.shape}"
            )
        if self._buffer.claim(start, stop, array.shape[self.axis]):
            longer = self._seen(self._buffer, stop)
        else:
            longer = self._copied(self.rows, stop)
        self._view(longer._buffer.array, start, stop)[...] = more
        return longer

    def take(self, which: np.ndarray) -> "Growing":
        """The samples `which` (integers in host memory) of the batch, in that order; one may be taken twice."""
        if np.array_equal(which, np.arange(len(self._buffer.array))):
            return self
        rows = self.rows
        return self._copied(rows[to_device(which, device_of(rows))], self.length)

    # ------------------------------------------------------------------------------------------ buffers

    def _seen(self, buffer: _Buffer, length: int) -> "Growing":
        value = object.__new__(Growing)
        value._buffer, value.axis, value.length = buffer, self.axis, length
        return value

    def _copied(self, rows: Array, length: int) -> "Growing":
        """A value of `length` rows in a buffer of its own with room for more, the first of them those of `rows`."""
        shape = list(rows.shape)
        shape[self.axis] = max(LEAST, 1 << length.bit_length())
        array = empty(tuple(shape), rows.dtype, like=rows)
        self._view(array, 0, rows.shape[self.axis])[...] = rows
        return self._seen(_Buffer(array, length), length)

    def _view(self, array: Array, start: int, stop: int) -> Array:
        return array[(slice(None),) * self.axis + (slice(start, stop),)]

    def _other_axes(self, array: Array) -> tuple[int, ...]:
        return array.shape[: self.axis] + array.shape[self.axis + 1 :]
