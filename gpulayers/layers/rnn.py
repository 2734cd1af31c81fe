"""RNN: the plain recurrent network."""

from typing import Any, ClassVar

from gpulayers.backend import Array, empty
from gpulayers.initialize import Init, Rng
from gpulayers.layers.recurrent import Recurrent
from gpulayers.layers.recurrent_cell import Cell, States, Step, Unrolled, at, joined
from gpulayers.ops.matmul import matmul
from gpulayers.ops.rnn_cell import check_nonlinearity, rnn_cell, rnn_cell_backward


class RNNCell(Cell):
    """h' = f(x weight_ih + bias_ih + h weight_hh + bias_hh), f = tanh or relu.

        h, saved = cell.forward(x, h)              # x (B, input_size), h (B, H); None: 0, and dh is None
        dx, dh   = cell.backward(dh, saved)

    weight_ih: (input_size, H). weight_hh: (H, H). bias_ih, bias_hh: (H,). saved: x, h and h'.
    Raises ValueError for a wrong shape or another nonlinearity, TypeError for another dtype than the parameters'.
    Source: Elman, Finding structure in time, 1990.
    """

    gates: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_nonlinearity(nonlinearity)
        super().__init__(input_size, hidden_size, bias, init=init, rng=rng, dtype=dtype)
        self.nonlinearity = nonlinearity

    def _forward_steps(self, gi: Array, states: States, order: list[Step], lengths: Array) -> tuple[Array, ...]:
        (h,) = states
        for t, before, after in order:
            gh = matmul(h[before], self.weight_hh.data)
            rnn_cell(gi[t], gh, h[before], self.nonlinearity, lengths, t, out=(h[after],))
        return ()

    def _backward_steps(
        self, dy: Array, dstates: States, saved: Unrolled, order: list[Step]
    ) -> tuple[Array, Array, States]:
        (h,), lengths = saved.states, saved.lengths
        da = empty((len(h) - 1, *h.shape[1:]), h.dtype, like=h)
        passed = None if lengths is None else empty(h.shape[1:], h.dtype, like=h)
        direct, product = dstates[0], None
        for t, _, after in order:
            out = (da[t], passed)
            rnn_cell_backward(at(dy, t), direct, product, h[after], self.nonlinearity, lengths, t, out=out)
            direct, product = passed, matmul(da[t], self.weight_hh.data.T)
        return da, da, (joined(h[0], direct, product),)


class RNN(Recurrent):
    """A plain recurrent network over sequences: h_t = f(x_t W_ih + b_ih + h_(t-1) W_hh + b_hh), f = tanh or relu.

        (y, h_n), saved = rnn.forward(x, h0=None, lengths=None, train=None)
        dx, dh0         = rnn.backward((dy, dh_n), saved)           # None for a gradient that is not there
        y_t, state      = rnn.step(x_t, state)                      # decoding, one direction only

    x: (B, T, input_size). y: (B, T, H), or (B, T, 2 H) with both directions side by side: the last layer's h.
    h0, h_n: (num_layers * directions, B, H), the states before and after, in PyTorch's order; h0 = None is 0, and dh0
    is None then. lengths: (B,) integers in 0..T: what lies behind a sequence's end changes no state and gets no
    gradient, y is 0 there, and the backward direction starts at the end. dropout: between layers, while training.
    Parameters: cells[k].weight_ih (in, H), weight_hh (H, H), bias_ih and bias_hh (H,), k = layer * directions +
    direction; PyTorch's weight_ih_l<layer>, with _reverse for the backward direction, transposed.
    saved: of each layer and direction, its input and all states; emptied by backward.
    Truncated backpropagation: give h_n of one piece as h0 of the next and drop the dh0 that comes back.

    Raises ValueError for wrong shapes and lengths outside 0..T, TypeError for another dtype than the parameters'.
    Sources: Elman, Finding structure in time, 1990; Schuster and Paliwal, Bidirectional recurrent neural networks,
    1997.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: str = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_nonlinearity(nonlinearity)
        self.nonlinearity = nonlinearity
        how: dict[str, Any] = {"bias": bias, "dropout": dropout, "bidirectional": bidirectional}
        super().__init__(input_size, hidden_size, num_layers, **how, init=init, rng=rng, dtype=dtype)

    def _cell(self, input_size: int, hidden_size: int, bias: bool, **how: Any) -> RNNCell:
        return RNNCell(input_size, hidden_size, bias, self.nonlinearity, **how)
