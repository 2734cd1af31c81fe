"""`Cell`: what RNNCell, GRUCell and LSTMCell share, one step or all steps of one direction of one layer.

Inside, sequences are time-major, (T, B, C): a step of the whole batch is then one contiguous piece. The products of the
input with weight_ih are made for all steps at once before the first step, and the gradients of both weights in one
product each after the last. Between them only h W_hh, or its transpose, is left to each step, and one op for the gates.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array, array_module, empty
from gpulayers.initialize import Init, Rng
from gpulayers.layers.layer import Layer, Once, check_dtype, check_flags, check_sizes, floating_like
from gpulayers.ops.add import add
from gpulayers.ops.matmul import matmul
from gpulayers.ops.op import as_rows
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train

States = tuple[Array, ...]  # (h,), or (h, c) for the LSTM; None for a state that is 0, or a gradient that is not there


class Step(NamedTuple):
    """Step t goes from the states at `before` to those at `after`, in buffers that hold T + 1 of them."""

    t: int
    before: int
    after: int


def steps(T: int, reverse: bool) -> list[Step]:
    """The steps in their order in time; reverse: from the last to the first, the states still beside their inputs."""
    return [Step(t, t + 1, t) for t in reversed(range(T))] if reverse else [Step(t, t, t + 1) for t in range(T)]


class Unrolled(NamedTuple):
    """What a cell keeps of all steps. states: buffers (T + 1, B, H). kept: its gates, in which backward works.

    has_state: whether a first state was given, and so has a gradient.
    """

    x: Array
    states: States
    kept: Once
    lengths: Array
    reverse: bool
    has_state: bool


class Cell(Layer, ABC):
    """One step, or all steps in one direction. A subclass says what a step is: `_forward_steps`, `_backward_steps`.

    weight_ih: (input_size, gates H). weight_hh: (H, gates H). bias_ih, bias_hh: (gates H,). They are PyTorch's of the
    same names, the weights transposed, all uniform in +-1/sqrt(H) at the start; `init(shape, rng)` replaces that of the
    weights.
    """

    gates: ClassVar[int]
    pair: ClassVar[bool] = False  # whether the state is (h, c)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        who, rng = type(self).__name__, initialize.generator(rng)
        check_sizes(who, input_size=input_size, hidden_size=hidden_size)
        check_flags(who, bias=bias)
        check_dtype(who, dtype)
        self.input_size, self.hidden_size = input_size, hidden_size

        def draw(*shape: int, init: Init | None = None) -> Parameter:
            values = initialize.fan_in_uniform(shape, rng, hidden_size) if init is None else init(shape, rng)
            return Parameter(values.astype(dtype))

        width = self.gates * hidden_size
        self.weight_ih, self.weight_hh = draw(input_size, width, init=init), draw(hidden_size, width, init=init)
        self.bias_ih, self.bias_hh = (draw(width), draw(width)) if bias else (None, None)

    # ------------------------------------------------------------------------------------------ one step

    def forward(self, x: Array, state: Any = None, train: Train | None = None) -> tuple[Any, Unrolled]:
        who = type(self).__name__
        floating_like(x, self.weight_ih, who)
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ValueError(f"{who} takes an input of shape (B, {self.input_size}), got {x.shape}")
        states = self._states(state, (len(x), self.hidden_size), "a state")
        _, after, saved = self.unroll(x[None], states)
        return self._public(after), saved

    def backward(self, dstate: Any, saved: Unrolled) -> tuple[Array, Any]:
        dstates = self._states(dstate, saved.states[0].shape[1:], "a gradient")
        dx, dstates = self.unroll_backward(None, dstates, saved)
        return dx[0], self._public(dstates) if saved.has_state else None

    def _states(self, state: Any, shape: tuple[int, ...], what: str) -> States:
        return as_states(state, shape, self.pair, self.weight_ih, type(self).__name__, what)

    def _public(self, states: States) -> Any:
        return states if self.pair else states[0]

    # ------------------------------------------------------------------------------------------ all steps

    def unroll(
        self, x: Array, states: States, lengths: Array = None, reverse: bool = False
    ) -> tuple[Array, States, Unrolled]:
        """x: (T, B, input_size). states: (B, H) each. Returns h of all steps (T, B, H), the last states, and saved.

        h at padding is the state that was carried past it. The results look at saved's memory: copy what you hand on.
        """
        T, B, _ = x.shape
        first, last = (T, 0) if reverse else (0, T)
        buffers = tuple(empty((T + 1, B, self.hidden_size), x.dtype, like=x) for _ in states)
        for buffer, state in zip(buffers, states, strict=True):
            buffer[first] = 0 if state is None else state
        gi = matmul(as_rows(x), self.weight_ih.data, bias=self._input_bias())
        gi = gi.reshape(T, B, self.gates * self.hidden_size)
        kept = self._forward_steps(gi, buffers, steps(T, reverse), lengths)
        outputs = buffers[0][:T] if reverse else buffers[0][1:]
        has_state = any(state is not None for state in states)
        after = tuple(buffer[last] for buffer in buffers)
        return outputs, after, Unrolled(x, buffers, Once(kept), lengths, reverse, has_state)

    def unroll_backward(self, dy: Array, dstates: States, saved: Unrolled) -> tuple[Array, States]:
        """dy: (T, B, H) or None; dstates: of the last states. Returns dx and the gradients of the first states."""
        x, states, reverse, T = saved.x, saved.states, saved.reverse, len(saved.x)
        dgi, dgh, dstates = self._backward_steps(dy, dstates, saved, steps(T, reverse)[::-1])
        before = states[0][1:] if reverse else states[0][:T]
        dgi, dgh = as_rows(dgi), as_rows(dgh)
        matmul(as_rows(x).T, dgi, add_to=self.weight_ih)  # dW_ih += x' dgi
        matmul(as_rows(before).T, dgh, add_to=self.weight_hh)  # dW_hh += h' dgh
        if self.bias_ih is not None and self.bias_hh is not None:
            self.bias_ih.add_grad(sum_rows(dgi))
            self.bias_hh.add_grad(sum_rows(dgh))
        return matmul(dgi, self.weight_ih.data.T).reshape(x.shape), dstates

    def _input_bias(self) -> Array:
        """What is added to the products of the input: both biases, for they only ever stand in one sum."""
        if self.bias_ih is None or self.bias_hh is None:
            return None
        return self.bias_ih.data + self.bias_hh.data

    @abstractmethod
    def _forward_steps(self, gi: Array, states: States, order: list[Step], lengths: Array) -> tuple[Array, ...]:
        """gi: (T, B, gates H), which may be overwritten. Fills the buffers of the states; returns what it keeps."""

    @abstractmethod
    def _backward_steps(
        self, dy: Array, dstates: States, saved: Unrolled, order: list[Step]
    ) -> tuple[Array, Array, States]:
        """order: from the last step back. Returns the gradients of gi and gh, (T, B, gates H), and of the states."""


def at(array: Array, t: int) -> Array:
    """array[t], None for None."""
    return None if array is None else array[t]


def joined(like: Array, *parts: Array) -> Array:
    """The sum of the parts (B, H) that are there, never one of them itself; zeros like `like` if there are none."""
    there = [part for part in parts if part is not None]
    if len(there) == 2:
        return add(*there)
    total = empty(like.shape, like.dtype, like=like)
    total[...] = there[0] if there else 0
    return total


def as_states(state: Any, shape: tuple[int, ...], pair: bool, like: Parameter, who: str, what: str) -> States:
    """A state as users give it, checked, as a tuple: (h,), or (h, c) if it is a pair. None: all of it is 0."""
    if state is None:
        return (None, None) if pair else (None,)
    if pair and not (isinstance(state, tuple | list) and len(state) == 2):
        raise TypeError(f"{who} takes {what} that is a pair (h, c), got {type(state).__name__}")
    states: States = tuple(state) if pair else (state,)
    for array in states:
        if array is None:
            continue
        floating_like(array, like, f"{who}, as {what},")
        array_module(array, like.data)  # or it would be copied to the other device without a word
        if array.shape != shape:
            raise ValueError(f"{who} takes {what} of shape {shape}, got {array.shape}")
    return states
