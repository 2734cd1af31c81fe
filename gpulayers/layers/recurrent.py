"""`Recurrent`: what RNN, GRU and LSTM share, layers of cells in one or both directions (recurrent_cell.py)."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array, array_module, empty, is_array
from gpulayers.cuda import contiguous
from gpulayers.initialize import Init, Rng
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.layer import Layer, Once, check_flags, check_sizes, floating_like, gradient_of
from gpulayers.layers.recurrent_cell import Cell, States, Unrolled, as_states, at
from gpulayers.ops.add import add
from gpulayers.ops.rnn_cell import checked_lengths
from gpulayers.ops.swap_time import swap_time
from gpulayers.step import Key, Train


class Saved(NamedTuple):
    """cells: of each layer and direction, emptied by backward. keys: of the dropout after each layer but the last."""

    shape: tuple[int, int]
    cells: list[Unrolled]
    keys: list[Key | None]


class Recurrent(Layer, ABC):
    """Layers of cells, each in one or both directions. `RNN`, `GRU` and `LSTM` say which cell it is."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        who, rng = type(self).__name__, initialize.generator(rng)
        check_sizes(who, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_flags(who, bidirectional=bidirectional)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.directions = 2 if bidirectional else 1
        self.output_size = self.directions * hidden_size
        self.cells: list[Cell] = []
        for layer in range(num_layers):
            size = self.output_size if layer else input_size
            for _ in range(self.directions):
                self.cells.append(self._cell(size, hidden_size, bias, init=init, rng=rng, dtype=dtype))
        self.pair = self.cells[0].pair
        self.dropout = Dropout(dropout)

    @abstractmethod
    def _cell(self, input_size: int, hidden_size: int, bias: bool, **how: Any) -> Cell:
        """A new cell; how: init, rng and dtype."""

    def __call__(self, x: Array, h0: Any = None, lengths: Any = None) -> tuple[Array, Any]:
        return self._run(x, h0, lengths, None, keep=False)[0]

    def forward(
        self, x: Array, h0: Any = None, lengths: Any = None, train: Train | None = None
    ) -> tuple[tuple[Array, Any], Saved]:
        return self._run(x, h0, lengths, train, keep=True)

    def _run(self, x: Array, h0: Any, lengths: Any, train: Train | None, keep: bool) -> tuple[tuple[Array, Any], Saved]:
        B, T = self._check(x)
        states = self._states(h0, B, "an initial state")
        lengths = checked_lengths(lengths, T, B, x, type(self).__name__)
        saved = Saved((B, T), Once(), [])
        last = tuple(empty((len(self.cells), B, self.hidden_size), x.dtype, like=x) for _ in states)
        below = swap_time(x, lengths)  # (T, B, input_size); whatever stands at padding ends here
        for layer in range(self.num_layers):
            if layer:
                below = self._drop(below, train, saved)
            outputs = []
            for k in self._in_layer(layer):
                reverse = k % self.directions == 1
                y, after, its = self.cells[k].unroll(below, tuple(at(s, k) for s in states), lengths, reverse)
                outputs.append(y)
                for array, state in zip(last, after, strict=True):
                    array[k] = state
                if keep:
                    saved.cells.append(its)
            below = outputs[0] if len(outputs) == 1 else array_module(x).concatenate(outputs, axis=2)
        return (swap_time(below, lengths, batch_first=False), self._public(last)), saved

    def backward(self, dy: tuple[Array, Any], saved: Saved) -> tuple[Array, Any]:
        doutput, dlast = self._gradients(dy, saved.shape)
        like, shape = self.cells[0].weight_ih.data, (len(self.cells), saved.shape[0], self.hidden_size)
        dfirst = tuple(empty(shape, like.dtype, like=like) for _ in dlast)
        above, batch_first, dx, has_state = doutput, True, None, False
        for layer in reversed(range(self.num_layers)):
            dx = None
            for k in reversed(self._in_layer(layer)):
                d = self._one_direction(above, k % self.directions, batch_first)
                its = saved.cells.pop()
                part, dstates = self.cells[k].unroll_backward(d, tuple(at(s, k) for s in dlast), its)
                has_state = its.has_state
                dx = part if dx is None else add(dx, part)
                for array, state in zip(dfirst, dstates, strict=True):
                    array[k] = state
            above, batch_first = dx, False
            if layer and (key := saved.keys.pop()) is not None:
                above, batch_first = self.dropout.backward(swap_time(dx, None, batch_first=False), key), True
        return swap_time(dx, None, batch_first=False), self._public(dfirst) if has_state else None

    def step(self, x: Array, state: Any = None) -> tuple[Array, Any]:
        """One step in evaluation, for decoding: x (B, input_size) -> y (B, H) and the new state; the old one stays.

        state: None, h_n (or the pair) of a forward pass, or what step returned: a tuple with h (B, H) of each layer;
        for LSTM a pair of such tuples. Raises ValueError for a network in both directions.
        """
        if self.directions == 2:
            raise ValueError(f"{type(self).__name__}.step: a network in both directions needs the whole sequence")
        self._check_count(state)
        new = []
        for k, cell in enumerate(self.cells):
            its = None if state is None else tuple(part[k] for part in state) if cell.pair else state[k]
            new.append(cell(x, its))
            x = new[-1][0] if cell.pair else new[-1]
        return x, tuple(zip(*new, strict=True)) if self.pair else tuple(new)

    # ------------------------------------------------------------------------------------------ parts

    def _in_layer(self, layer: int) -> range:
        """Indices of a layer's cells: forward, and backward if there are both."""
        return range(layer * self.directions, (layer + 1) * self.directions)

    def _drop(self, below: Array, train: Train | None, saved: Saved) -> Array:
        """Dropout counts samples by the first axis, so it sees (B, T, C)."""
        if train is None or self.dropout.p == 0:
            saved.keys.append(None)
            return below
        y, key = self.dropout.forward(swap_time(below, None, batch_first=False), train)
        saved.keys.append(key)
        return swap_time(y)

    def _one_direction(self, above: Array, direction: int, batch_first: bool) -> Array:
        """The gradient of a direction's outputs, (T, B, H), from that of the layer's."""
        if above is None:
            return None
        H = self.hidden_size
        part = above[:, :, direction * H : (direction + 1) * H]
        return swap_time(part) if batch_first else contiguous(part)

    # ------------------------------------------------------------------------------------------ the door

    def _check(self, x: Array) -> tuple[int, int]:
        who = type(self).__name__
        floating_like(x, self.cells[0].weight_ih, who)
        if x.ndim != 3 or x.shape[2] != self.input_size:
            raise ValueError(f"{who} takes an input of shape (B, T, {self.input_size}), got {x.shape}")
        return x.shape[:2]

    def _check_count(self, state: Any) -> None:
        """Refuse a state for `step` of another number of layers; each cell looks at its own part."""
        parts = state if self.pair and isinstance(state, tuple | list) else [state]
        counts = [len(part) if isinstance(part, tuple | list) or is_array(part) else -1 for part in parts]
        if state is not None and counts != [self.num_layers] * (1 + self.pair):
            wanted = f"a pair of {self.num_layers} arrays each" if self.pair else f"{self.num_layers} arrays"
            raise ValueError(f"{type(self).__name__}.step takes a state of {wanted}, one for each layer")

    def _states(self, state: Any, B: int, what: str) -> States:
        shape = (len(self.cells), B, self.hidden_size)
        return as_states(state, shape, self.pair, self.cells[0].weight_ih, type(self).__name__, what)

    def _public(self, states: States) -> Any:
        return states if self.pair else states[0]

    def _gradients(self, dy: Any, shape: tuple[int, int]) -> tuple[Array, States]:
        """(gradient of y or None, gradients of the last states), checked."""
        who = type(self).__name__
        if not (isinstance(dy, tuple | list) and len(dy) == 2):
            raise TypeError(f"{who}.backward takes a pair (dy, dh_n), None for what has no gradient")
        if dy[0] is not None:
            gradient_of(dy[0], (*shape, self.output_size), who)
        return dy[0], self._states(dy[1], shape[0], "a gradient")
