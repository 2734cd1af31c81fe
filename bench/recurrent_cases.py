"""Cases of `bench.ops` for recurrent networks: the cells' ops by themselves, and whole layers beside PyTorch's.

A layer stands in for an op: its reference is the layer in float64, forward and backward. The sizes are those of
`bench.train --case seq2seq`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cases import Case, draw
from bench.target_cases import TargetCase
from gpulayers.layers.gru import GRU
from gpulayers.layers.lstm import LSTM
from gpulayers.layers.rnn import RNN
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.op import Op
from gpulayers.ops.rnn_cell import rnn_cell, rnn_cell_backward
from gpulayers.ops.swap_time import swap_time

B, T, H = 32, 32, 256
LAYERS: dict[str, Any] = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def states(count: int, *widths: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Arrays (B, width H), then `count` of (B, H)."""
    return lambda rng: (*(draw(rng, B, width * H) for width in widths), *(draw(rng, B, H) for _ in range(count)))


def gru_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, B, 3 * H), draw(rng, B, 3 * H), draw(rng, H), draw(rng, B, H)


def gru_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    gi, gh, bias, h = gru_arguments(rng)
    _, gates, hn = gru_cell.reference(gi, gh, bias, h)
    return *(draw(rng, B, H) for _ in range(3)), gates, hn, h


def lstm_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    gi, gh, h, c = states(2, 4, 4)(rng)
    _, c_new, gates = lstm_cell.reference(gi, gh, h, c)
    return *(draw(rng, B, H) for _ in range(4)), gates, c, c_new


def rnn_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return *(draw(rng, B, H) for _ in range(3)), np.tanh(draw(rng, B, H))


@functools.cache
def layer_of(kind: str, dtype: str) -> Any:
    return LAYERS[kind](H, H, rng=0, dtype=dtype)


def both_passes(kind: str) -> Callable[..., tuple[Any, ...]]:
    """(x, dy, *weights) -> y, dx and the gradients of the weights."""

    def run(x: Any, dy: Any, *weights: Any) -> tuple[Any, ...]:
        layer = layer_of(kind, str(x.dtype))
        parameters = list(layer.parameters())
        for parameter, values in zip(parameters, weights, strict=True):
            parameter.data = values
            parameter.zero_grad()
        (y, _), saved = layer.forward(x)
        dx, _ = layer.backward((dy, None), saved)
        return y, dx, *(parameter.grad for parameter in parameters)

    return run


def layer_arguments(kind: str) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        weights = (draw(rng, *p.shape) / 16 for p in layer_of(kind, "float32").parameters())  # 1 / sqrt(H)
        return draw(rng, B, T, H), draw(rng, B, T, H), *weights

    return make


def layer_peer(kind: str) -> Callable[..., Callable[[], Any]]:
    def peer(torch: Any, x: Any, dy: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Callable[[], Any]:
        module = getattr(torch.nn, kind)(H, H, batch_first=True)
        own = [module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0]
        with torch.no_grad():
            for parameter, values in zip(own, (w_ih.T, w_hh.T, b_ih, b_hh), strict=True):
                parameter.copy_(values)
        x.requires_grad_()

        def run() -> tuple[Any, ...]:
            y = module(x)[0]
            dx, dw_ih, dw_hh, db_ih, db_hh = torch.autograd.grad(y, [x, *own], dy)
            return y, dx, dw_ih.T, dw_hh.T, db_ih, db_hh

        return run

    return peer


def layer_case(kind: str) -> Case:
    op = Op(f"{kind} layer", reference=both_passes(kind), cpu=both_passes(kind))
    # in both passes each matrix is met three times: y, the gradient below, its own gradient
    flops = 3.0 * 2 * B * T * GATES[kind] * H * 2 * H
    return TargetCase(op, layer_arguments(kind), layer_peer(kind), flops=lambda *_: flops, factor=10)


CASES: dict[str, Case] = {
    "rnn_cell": Case(rnn_cell, states(3)),
    "rnn_cell_backward": Case(rnn_cell_backward, rnn_backward_arguments),
    "gru_cell": Case(gru_cell, gru_arguments),
    "gru_cell_backward": Case(gru_cell_backward, gru_backward_arguments),
    "lstm_cell": Case(lstm_cell, states(2, 4, 4)),
    "lstm_cell_backward": Case(lstm_cell_backward, lstm_backward_arguments),
    "swap_time": Case(
        swap_time,
        lambda rng: (draw(rng, 64, 64, 1024),),
        lambda torch, x: lambda: x.transpose(0, 1).contiguous(),
    ),
    **{f"{kind} layer": layer_case(kind) for kind in LAYERS},
}
