"""GRU: the gated recurrent unit."""

from typing import Any, ClassVar

from gpulayers.backend import Array, empty
from gpulayers.layers.recurrent import Recurrent
from gpulayers.layers.recurrent_cell import Cell, States, Step, Unrolled, at, joined
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.matmul import matmul


class GRUCell(Cell):
    """A step of a gated recurrent unit, as PyTorch has it, with W_ih split into W_ir, W_iz, W_in and so on:

        r = s(x W_ir + b_ir + h W_hr + b_hr)        z = s(x W_iz + b_iz + h W_hz + b_hz)
        n = tanh(x W_in + b_in + r (h W_hn + b_hn))
        h' = (1 - z) n + z h

        h, saved = cell.forward(x, h)              # x (B, input_size), h (B, H); None: 0, and dh is None
        dx, dh   = cell.backward(dh, saved)

    weight_ih: (input_size, 3 H). weight_hh: (H, 3 H). bias_ih, bias_hh: (3 H,).
    saved: x, h, h', r, z, n and h W_hn + b_hn.
    Raises ValueError for a wrong shape, TypeError for another dtype than the parameters'.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, equations 5 to 8.
    """

    gates: ClassVar[int] = 3

    def _input_bias(self) -> Array:
        """Both biases, but for b_hn, which r multiplies."""
        if self.bias_ih is None or self.bias_hh is None:
            return None
        bias, known = self.bias_ih.data.copy(), slice(2 * self.hidden_size)
        bias[known] += self.bias_hh.data[known]
        return bias

    def _forward_steps(self, gi: Array, states: States, order: list[Step], lengths: Array) -> tuple[Array, ...]:
        (h,), H = states, self.hidden_size
        bias = None if self.bias_hh is None else self.bias_hh.data[2 * H :]
        hn = empty((*gi.shape[:2], H), h.dtype, like=h)
        for t, before, after in order:
            gh = matmul(h[before], self.weight_hh.data)
            gru_cell(gi[t], gh, bias, h[before], lengths, t, out=(h[after], gi[t], hn[t]))
        return gi, hn  # r, z, n have taken the place of their sums

    def _backward_steps(
        self, dy: Array, dstates: States, saved: Unrolled, order: list[Step]
    ) -> tuple[Array, Array, States]:
        (h,), hn, gates, lengths = saved.states, saved.kept.pop(), saved.kept.pop(), saved.lengths
        dgi, dgh = gates, empty(gates.shape, gates.dtype, like=gates)  # dgi takes the place of r, z, n
        dh = empty(h.shape[1:], h.dtype, like=h)
        direct, product = dstates[0], None
        for t, before, _ in order:
            out = (dgi[t], dgh[t], dh)
            gru_cell_backward(at(dy, t), direct, product, gates[t], hn[t], h[before], lengths, t, out=out)
            direct, product = dh, matmul(dgh[t], self.weight_hh.data.T)
        return dgi, dgh, (joined(h[0], direct, product),)


class GRU(Recurrent):
    """A gated recurrent unit over sequences; the step is that of `GRUCell`.

        (y, h_n), saved = gru.forward(x, h0=None, lengths=None, train=None)
        dx, dh0         = gru.backward((dy, dh_n), saved)           # None for a gradient that is not there
        y_t, state      = gru.step(x_t, state)                      # decoding, one direction only

    Shapes, lengths, dropout and errors as in `RNN`; weights are three times as wide, in the order r, z, n.
    saved: of each layer and direction, its input, all states, r, z, n and h W_hn + b_hn; emptied by backward.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014.
    """

    def _cell(self, input_size: int, hidden_size: int, bias: bool, **how: Any) -> GRUCell:
        return GRUCell(input_size, hidden_size, bias, **how)
