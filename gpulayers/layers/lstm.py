"""LSTM: long short-term memory."""

from typing import Any, ClassVar

from gpulayers.backend import Array, empty
from gpulayers.layers.recurrent import Recurrent
from gpulayers.layers.recurrent_cell import Cell, States, Step, Unrolled, at, joined
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.matmul import matmul


class LSTMCell(Cell):
    """A step of a long short-term memory without peepholes, as PyTorch has it; a = x W_ih + b_ih + h W_hh + b_hh:

        i, f, o = s(a_i), s(a_f), s(a_o)     g = tanh(a_g)
        c' = f c + i g                       h' = o tanh(c')

        (h, c), saved = cell.forward(x, (h, c))    # x (B, input_size), h and c (B, H); None: 0, and no gradient
        dx, (dh, dc)  = cell.backward((dh, dc), saved)

    weight_ih: (input_size, 4 H). weight_hh: (H, 4 H). bias_ih, bias_hh: (4 H,), in the order i, f, g, o.
    saved: x, h, h', c, c', i, f, g, o.
    Raises ValueError for a wrong shape, TypeError for another dtype than the parameters'.
    Sources: Hochreiter and Schmidhuber, Long short-term memory, 1997; Gers, Schmidhuber and Cummins, Learning to
    forget, 2000.
    """

    gates: ClassVar[int] = 4
    pair: ClassVar[bool] = True

    def _forward_steps(self, gi: Array, states: States, order: list[Step], lengths: Array) -> tuple[Array, ...]:
        h, c = states
        for t, before, after in order:
            gh = matmul(h[before], self.weight_hh.data)
            lstm_cell(gi[t], gh, h[before], c[before], lengths, t, out=(h[after], c[after], gi[t]))
        return (gi,)  # i, f, g, o have taken the place of their sums

    def _backward_steps(
        self, dy: Array, dstates: States, saved: Unrolled, order: list[Step]
    ) -> tuple[Array, Array, States]:
        (h, c), gates, lengths = saved.states, saved.kept.pop(), saved.lengths
        da = gates  # takes the place of i, f, g, o
        dc_out = empty(c.shape[1:], c.dtype, like=c)
        passed = None if lengths is None else empty(h.shape[1:], h.dtype, like=h)
        (direct, dc), product = dstates, None
        for t, before, after in order:
            given, out = (at(dy, t), direct, product, dc), (da[t], dc_out, passed)
            lstm_cell_backward(*given, gates[t], c[before], c[after], lengths, t, out=out)
            direct, dc, product = passed, dc_out, matmul(da[t], self.weight_hh.data.T)
        return da, da, (joined(h[0], direct, product), joined(c[0], dc))


class LSTM(Recurrent):
    """A long short-term memory over sequences; the step is that of `LSTMCell`.

        (y, (h_n, c_n)), saved = lstm.forward(x, h0=None, lengths=None, train=None)      # h0: the pair (h0, c0)
        dx, (dh0, dc0)         = lstm.backward((dy, (dh_n, dc_n)), saved)                # None for what is not there
        y_t, state             = lstm.step(x_t, state)                                   # decoding, one direction only

    Shapes, lengths, dropout and errors as in `RNN`; weights are four times as wide, in the order i, f, g, o.
    saved: of each layer and direction, its input, all states, i, f, g and o; emptied by backward.
    Source: Hochreiter and Schmidhuber, Long short-term memory, 1997.
    """

    def _cell(self, input_size: int, hidden_size: int, bias: bool, **how: Any) -> LSTMCell:
        return LSTMCell(input_size, hidden_size, bias, **how)
