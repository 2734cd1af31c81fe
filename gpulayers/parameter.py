"""Parameters, buffers, and the flat memory in which a model's parameters and gradients lie side by side."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.backend import Array, array_module, empty, is_floating, to_device, wide, zeros

if TYPE_CHECKING:
    from gpulayers.layers.layer import Layer


_room: ContextVar[list[int] | None] = ContextVar("room", default=None)  # elements that are left; None: any number


class NoRoom(ValueError):
    """A model would be larger than the file that describes it."""


@contextlib.contextmanager
def room_for(arrays: Iterable[Array]) -> Iterator[None]:
    """Inside, a model whose sizes are words of a file may have twice the elements of the file's arrays, and no more.

    Before anything larger is allocated NoRoom is raised: a file of a few bytes must not take all memory, or hours.
    """
    token = _room.set([2 * sum(array.size for array in arrays) + 4096])
    try:
        yield
    finally:
        _room.reset(token)


def check_room(shape: tuple[int, ...]) -> None:
    """Raises NoRoom where `room_for` leaves no room for a parameter of this shape."""
    room = _room.get()
    if room is not None and math.prod(shape) > room[0]:
        raise NoRoom(f"a parameter of shape {shape} is more than the file holds")


class Contribution(Protocol):
    """A part of a gradient that is still to be worked out."""

    def add(self, grad: Array, is_zero: bool) -> None:
        """grad += this; grad = this where it counts as zero, whatever it holds."""


class Parameter:
    """A trained array and its gradient.

    data: the values. grad: same shape and dtype, the sum of all contributions since `zero_grad`.
    trainable: False freezes it: contributions are dropped and optimizers pass it over.

    deferred: None; or a list of what `contribute_deferred` was given. `training/threads.py` sets it, and adds what is
    in it when the passes of all threads are through: of a table, a gradient for each thread would take much memory.

    `zero_grad` only marks the gradient as zero. The first contribution then overwrites the old values instead of
    being added to a cleared array, which saves a pass over the memory; reading `grad` clears it if none has come.
    So both ways are right: `p.grad += g`, and the cheaper `p.add_grad(g)` and `matmul(a, b, add_to=p)`.

    A float16 or bfloat16 parameter that an optimizer trains has a float32 master beside it, of which data is the
    rounded copy: most updates are too small to move a number of 8 or 11 bits. `values` are the master's then, and
    `assign` writes both; who writes into data alone finds it overwritten by the next update.
    """

    def __init__(self, data: Array, trainable: bool = True) -> None:
        if not is_floating(data.dtype):
            raise TypeError(f"Parameter takes a floating array, got {data.dtype}: a Buffer may hold integers")
        check_room(data.shape)
        if (room := _room.get()) is not None:
            room[0] -= data.size
        self.data = data
        self.trainable = trainable
        self.flat: Flat | None = None
        self.deferred: list[Contribution] | None = None
        self._grad: Array = None
        self._grad_is_zero = True
        self._master: Array = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def values(self) -> Array:
        """The values in full precision: the float32 master if there is one, else data."""
        return self.data if self._master is None else self._master

    def assign(self, values: Array) -> None:
        """Overwrite the values."""
        self.values[...] = values
        if self._master is not None:
            self.data[...] = self._master

    @property
    def grad(self) -> Array:
        grad, is_zero = self.grad_to_update()
        if is_zero:
            grad.fill(0)
        return grad

    @grad.setter
    def grad(self, value: Array) -> None:
        grad, _ = self.grad_to_update()
        if value is not grad:  # `p.grad += g` has worked in place already
            grad[...] = value

    def grad_to_update(self) -> tuple[Array, bool]:
        """(gradient array, whether to overwrite it rather than add to it); the caller must do the one or the other."""
        if self._grad is None:
            if self.flat is not None:
                self.flat.allocate_grad(self)
            else:
                self._grad = empty(self.shape, self.dtype, like=self.data)
        is_zero, self._grad_is_zero = self._grad_is_zero, False
        return self._grad, is_zero

    def add_grad(self, contribution: Array) -> None:
        """grad += contribution (broadcast to the parameter's shape)."""
        if not self.trainable:
            return
        grad, is_zero = self.grad_to_update()
        if is_zero:
            grad[...] = contribution
        else:
            grad += contribution

    def contribute(self, contribution: "Contribution") -> None:
        """grad += contribution."""
        if not self.trainable:
            return
        grad, is_zero = self.grad_to_update()
        try:
            contribution.add(grad, is_zero)
        except BaseException:
            self._grad_is_zero = is_zero  # what nobody has written must not pass for a gradient
            raise

    def contribute_deferred(self, contribution: "Contribution") -> None:
        """The same, at once or when the pass of all threads is through: until then its arrays must not be written."""
        if self.deferred is None:
            self.contribute(contribution)
        elif self.trainable:
            self.deferred.append(contribution)

    def zero_grad(self) -> None:
        self._grad_is_zero = True
        if self.deferred:
            self.deferred.clear()

    def move(self, device: str | None = None, dtype: DTypeLike | None = None) -> None:
        """To another device or floating type, in place, so that ties stay tied. The gradient starts at zero."""
        if self.flat is not None:
            raise RuntimeError("a packed parameter moves with its whole buffer: use layer.to(...)")
        self.data = moved(self.data, device, dtype)
        self._grad, self._grad_is_zero = None, True

    def __deepcopy__(self, memo: dict[int, Any]) -> "Parameter":
        if self.flat is not None:  # the copy lies in a copy of the whole buffer
            copy.deepcopy(self.flat, memo)
            return memo[id(self)]
        memo[id(self)] = clone = Parameter(self.data.copy(), self.trainable)
        clone._grad_is_zero = self._grad_is_zero
        clone._grad = None if self._grad is None else self._grad.copy()
        return clone

    def __reduce__(self) -> Any:
        """Pickled, for another process say, it leaves flat memory, gradient and master behind: views of one buffer come
        back as copies, and an optimizer would update the buffer alone."""
        return Parameter, (self.data, self.trainable)

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape}, dtype={self.dtype}{'' if self.trainable else ', frozen'})"


class Buffer:
    """An array that belongs to a layer but is not trained: running statistics, a table of positions.

    persistent: whether it goes into `state_dict`. keep_wide: float32 at least, whatever type the layer is moved to.

    Running statistics must not move in a pass that is thrown away: a step that is skipped, a forward pass without a
    backward pass, one that is run again by `Recompute`. So neither forward nor backward writes them: backward only
    queues what is to be done, and the optimizer's step commits it, or drops it, as `zero_grad` does. Without one of
    this library's optimizers, `layer.commit()` is that step.
    """

    def __init__(self, data: Array, persistent: bool = True, keep_wide: bool = False) -> None:
        self.data = data
        self.persistent = persistent
        self.keep_wide = keep_wide
        self._queued: list[Callable[[Array], None]] = []

    @property
    def values(self) -> Array:
        return self.data

    def assign(self, values: Array) -> None:
        self.data[...] = values

    def queue(self, update: Callable[[Array], None]) -> None:
        """Call `update(control)` when the step is decided.

        It changes this buffer, and others of its layer if need be, unless the first element of `control` is 0. That is
        an array where the buffer lies, or None. It must not wait for the device.
        """
        self._queued.append(update)

    def commit(self, control: Array = None) -> None:
        """Run the queued updates, the first first, and forget them."""
        queued, self._queued = self._queued, []
        for update in queued:
            update(control)

    def take(self, other: "Buffer") -> None:
        """Put what is queued for `other`, a replica's, behind one's own."""
        self._queued += other.drain()

    def drain(self) -> list[Callable[[Array], None]]:
        """What is queued, which is forgotten here."""
        queued, self._queued = self._queued, []
        return queued

    def drop(self) -> None:
        """Forget the queued updates."""
        self._queued = []

    def move(self, device: str | None = None, dtype: DTypeLike | None = None) -> None:
        """To another device or floating type, in place. What is queued is dropped, as gradients are."""
        dtype = wide(dtype) if self.keep_wide and dtype is not None else dtype
        self.data = moved(self.data, device, dtype)
        self.drop()


def moved(array: Array, device: str | None, dtype: DTypeLike | None) -> Array:
    """`array` on `device`, a floating one as `dtype`; None leaves either as it is."""
    if dtype is not None and is_floating(array.dtype) and array.dtype != np.dtype(dtype):
        array = array.astype(dtype)
    return array if device is None else to_device(array, device)


# ------------------------------------------------------------------------------------------------- flat memory

PADDING = 256  # bytes; every parameter starts at a multiple, for aligned vector loads on the GPU


class Segment(NamedTuple):
    """Where a parameter lies in the flat buffer: elements start to stop."""

    name: str
    parameter: Parameter
    start: int
    stop: int


class Flat:
    """All parameters of a model in one contiguous array, all gradients in another of the same layout.

    data, grad: (size,), the padding between segments is 0. segments: one per parameter, matrices first, then vectors,
    so that the usual two groups (with and without weight decay) are one stretch of memory each. master: the parameters
    in float32, None unless `make_master` was called; data is then its rounded copy. buffers: the model's, which a step
    commits; they lie where they were.
    """

    def __init__(self, named: list[tuple[str, Parameter]]) -> None:
        if not named:
            raise ValueError("pack: the model has no parameters")
        kinds = {(array_module(p.data), p.dtype) for _, p in named}
        if len(kinds) > 1:
            raise TypeError(f"pack: all parameters must share one device and dtype, got {sorted(map(str, kinds))}")
        ordered = sorted(named, key=lambda item: item[1].data.ndim < 2)  # stable
        gradients = [(parameter, parameter._grad) for _, parameter in named if not parameter._grad_is_zero]
        self._lay_out(ordered, [parameter.data for _, parameter in ordered])
        self.buffers: list[Buffer] = []
        for parameter, gradient in gradients:  # of a backward pass before the optimizer was made
            parameter.add_grad(gradient)

    def _lay_out(self, named: list[tuple[str, Parameter]], values: list[Array]) -> None:
        """Make the buffer beside `values`, copy them in and turn the parameters into views."""
        dtype, end = values[0].dtype, 0
        step = PADDING // dtype.itemsize
        self.segments: list[Segment] = []
        for name, parameter in named:
            size = parameter.data.size
            self.segments.append(Segment(name, parameter, end, end + size))
            end += -(-size // step) * step
        self.size = end
        self.data = zeros(end, dtype, like=values[0])
        self._grad: Array = None
        self.master: Array = None
        for (_, parameter, start, stop), value in zip(self.segments, values, strict=True):
            parameter.data = self.data[start:stop].reshape(value.shape)
            parameter.data[...] = value
            parameter.flat, parameter._grad, parameter._grad_is_zero = self, None, True
            parameter._master = None

    def make_master(self) -> None:
        """Masters of float16 or bfloat16 parameters, from their values; nothing where they are there or not needed."""
        if self.master is None and self.data.dtype != wide(self.data.dtype):
            self.master = self.data.astype(wide(self.data.dtype))
            for _, parameter, start, stop in self.segments:
                parameter._master = self.master[start:stop].reshape(parameter.shape)

    def allocate_grad(self, first: Parameter | None = None) -> None:
        """Memory for the gradients, when the first is needed: a model that only generates has none."""
        self._grad = zeros(self.size, self.data.dtype, like=self.data)
        for _, parameter, start, stop in self.segments:
            parameter._grad = self._grad[start:stop].reshape(parameter.shape)

    @property
    def grad(self) -> Array:
        """All gradients. Those without a contribution since `zero_grad` are cleared on the way."""
        if self._grad is None:
            self.allocate_grad()
        for segment in self.segments:
            if segment.parameter._grad_is_zero:
                segment.parameter._grad.fill(0)
                segment.parameter._grad_is_zero = False
        return self._grad

    def zero_grad(self) -> None:
        for segment in self.segments:
            segment.parameter.zero_grad()
        for buffer in self.buffers:
            buffer.drop()

    def commit(self, control: Array) -> None:
        """Commit what is queued for the buffers, unless the first element of `control` is 0 (ops/update_control.py)."""
        for buffer in self.buffers:
            buffer.commit(control)

    def move(self, device: str | None = None, dtype: DTypeLike | None = None) -> None:
        had_master, values = self.master is not None, [moved(s.parameter.values, device, None) for s in self.segments]
        new = self.data.dtype if dtype is None else dtype
        self._lay_out([(s.name, s.parameter) for s in self.segments], [moved(value, None, new) for value in values])
        if had_master:
            self.make_master()
            for segment, value in zip(self.segments, values, strict=True):
                segment.parameter.assign(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Flat":
        """A flat buffer of its own: copying the parameters one by one would leave them outside the new buffer."""
        memo[id(self)] = clone = Flat.__new__(Flat)
        for segment in self.segments:
            memo[id(segment.parameter)] = Parameter(segment.parameter.data, segment.parameter.trainable)
        named = [(name, memo[id(parameter)]) for name, parameter, _, _ in self.segments]
        clone._lay_out(named, [parameter.data for _, parameter, _, _ in self.segments])
        clone.buffers = copy.deepcopy(self.buffers, memo)
        if self.master is not None:
            clone.make_master()
            clone.master[...] = self.master
        if self._grad is not None:
            clone.allocate_grad()
            clone._grad[...] = self._grad
            for (_, new), (_, old, _, _) in zip(named, self.segments, strict=True):
                new._grad_is_zero = old._grad_is_zero
        return clone

    def __reduce__(self) -> Any:
        raise TypeError("an optimizer and its flat memory cannot be pickled: pass on the model and both state_dicts")


def pack(model: "Layer") -> Flat:
    """Lay all parameters of `model` in one flat buffer; a second call returns the same `Flat`.

    Raises ValueError without parameters or when a part of the model is packed already, TypeError for mixed dtypes.
    """
    named = list(model.named_parameters())
    flats = {id(p.flat): p.flat for _, p in named}
    if len(flats) == 1:
        flat = next(iter(flats.values()))
        if flat is not None and len(flat.segments) == len(named):
            flat.buffers = list(model.buffers())
            return flat
    if any(flat is not None for flat in flats.values()):
        raise ValueError("pack: some parameters are packed with another model already")
    flat = Flat(named)
    flat.buffers = list(model.buffers())
    return flat
