"""Recurrent cells, and the layers that are made of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.backend import array_module
from gpulayers.layers.gru import GRU, GRUCell
from gpulayers.layers.layer import Layer
from gpulayers.layers.lstm import LSTM, LSTMCell
from gpulayers.layers.rnn import RNN, RNNCell
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.op import Op
from gpulayers.ops.rnn_cell import rnn_cell, rnn_cell_backward
from gpulayers.ops.swap_time import swap_time
from gpulayers.step import Train
from gpulayers.verify.case import Arg, Case, Function, GradientCase, LayerCase, Maker, OpCase, transposed
from gpulayers.verify.cases.inputs import EXTREMES, normal

SHAPES = {"H 1": (3, 1), "H 5": (4, 5), "H 1023": (2, 1023), "transposed view": (5, 6), "empty batch": (0, 5)}
T = 1  # the step; rows of length 0 and 1 are idle in it
TRAIN = Train(seed=3, step=7, first_sample=5)


def lengths_of(rows: int) -> dict[str, Any]:
    """Every row active, some of them, none."""
    some = np.resize(np.array([2, 0, 1, 3], np.int32), rows)
    return {"": None, ", lengths": some, ", all idle": np.zeros(rows, np.int32)}


def cell_ops(rng: np.random.Generator) -> Iterator[Case]:
    for name, (B, H) in SHAPES.items():
        for more, lengths in lengths_of(B).items():
            for op, kind, args in step_calls(rng, B, H):
                if name == "transposed view":
                    args = [transposed(a) if isinstance(a, np.ndarray) and a.ndim == 2 else a for a in args]
                yield OpCase(op=op, name=f"{name}{more}{kind}", args=(*args, lengths, T))
    x = np.stack([np.roll(EXTREMES, i)[:8] for i in range(2)]) / np.float32(2)  # the sum of two stays in float16
    yield OpCase(op=rnn_cell, name="float16 extremes, relu", args=(x, x, x, "relu"))
    yield OpCase(op=rnn_cell, name="float16 extremes", args=(x, x, x))
    yield OpCase(op=gru_cell, name="float16 extremes", args=(x[:, :6], x[:, :6], None, x[:, :2]))
    state = np.clip(x[:, :2], -100, 100)
    yield OpCase(op=lstm_cell, name="float16 extremes", args=(x, x, state, state))


def step_calls(rng: np.random.Generator, B: int, H: int) -> Iterator[tuple[Op, str, list[Any]]]:
    """(op, name of the form, arguments before lengths)."""
    h, c, dy, direct, product, dc = (normal(rng, B, H) for _ in range(6))
    for f in ("tanh", "relu"):
        args = [normal(rng, B, H), normal(rng, B, H), h, f]
        yield rnn_cell, f", {f}", args
        yield rnn_cell_backward, f", {f}", [dy, direct, product, rnn_cell(*args), f]
    for kind, bias in (("", normal(rng, H)), (", no bias", None)):
        args = [normal(rng, B, 3 * H), normal(rng, B, 3 * H), bias, h]
        yield gru_cell, kind, args
        yield gru_cell_backward, kind, [dy, direct, product, *gru_cell(*args)[1:], h]
    args = [normal(rng, B, 4 * H), normal(rng, B, 4 * H), h, c]
    yield lstm_cell, "", args
    _, c_new, gates = lstm_cell(*args)
    yield lstm_cell_backward, "", [dy, direct, product, dc, gates, c, c_new]
    yield lstm_cell_backward, ", last step", [dy, None, None, None, gates, c, c_new]
    yield gru_cell_backward, ", final state only", [None, direct, None, *gru_cell(*args_of_gru(rng, B, H, h))[1:], h]


def args_of_gru(rng: np.random.Generator, B: int, H: int, h: np.ndarray) -> list[Any]:
    return [normal(rng, B, 3 * H), normal(rng, B, 3 * H), normal(rng, H), h]


def cell_gradients(rng: np.random.Generator) -> Iterator[Case]:
    B, H = 4, 3

    def draw(times: int) -> np.ndarray:
        return rng.normal(size=(B, times * H))

    for more, lengths in lengths_of(B).items():
        for f in ("tanh", "relu"):

            def rnn_forward(gi: Any, gh: Any, h: Any, f: str = f, lengths: Any = lengths) -> tuple[Any, Any]:
                y = rnn_cell(gi, gh, h, f, lengths, T)
                return y, y

            def rnn_backward(dy: Any, y: Any, f: str = f, lengths: Any = lengths) -> tuple[Any, ...]:
                da, passed = rnn_cell_backward(None, dy, None, y, f, lengths, T)
                return da, da, np.zeros_like(y) if passed is None else passed

            yield GradientCase(
                ops=(rnn_cell, rnn_cell_backward),
                name=f + more,
                function=Function(rnn_forward, rnn_backward),
                inputs=(draw(1), draw(1), draw(1)),
            )

        def gru_forward(gi: Any, gh: Any, bias: Any, h: Any, lengths: Any = lengths) -> tuple[Any, Any]:
            y, gates, hn = gru_cell(gi, gh, bias, h, lengths, T)
            return y, (gates, hn, h)

        def gru_backward(dy: Any, saved: Any, lengths: Any = lengths) -> tuple[Any, ...]:
            dgi, dgh, dh = gru_cell_backward(None, dy, None, *saved, lengths, T)
            return dgi, dgh, dgh[:, 2 * H :].sum(axis=0), dh

        yield GradientCase(
            ops=(gru_cell, gru_cell_backward),
            name="steps" + more,
            function=Function(gru_forward, gru_backward),
            inputs=(draw(3), draw(3), rng.normal(size=H), draw(1)),
        )

        def lstm_forward(gi: Any, gh: Any, h: Any, c: Any, lengths: Any = lengths) -> tuple[Any, Any]:
            h_new, c_new, gates = lstm_cell(gi, gh, h, c, lengths, T)
            return (h_new, c_new), (gates, c, c_new)

        def lstm_backward(dy: Any, saved: Any, lengths: Any = lengths) -> tuple[Any, ...]:
            da, dc, passed = lstm_cell_backward(None, dy[0], None, dy[1], *saved, lengths, T)
            return da, da, np.zeros_like(dc) if passed is None else passed, dc

        yield GradientCase(
            ops=(lstm_cell, lstm_cell_backward),
            name="steps" + more,
            function=Function(lstm_forward, lstm_backward),
            inputs=(draw(4), draw(4), draw(1), draw(1)),
        )


def swap_cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = {
        "one element": (1, 1, 1),
        "primes": (3, 5, 7),
        "C 1023": (2, 3, 1023),
        "empty batch": (0, 3, 4),
        "T 0": (3, 0, 4),
    }
    for name, shape in shapes.items():
        for more, most in (("", None), (", lengths", shape[1]), (", all padding", 0)):
            lengths = None if most is None else rng.integers(0, most + 1, shape[0]).astype(np.int32)
            x = normal(rng, *shape)
            yield OpCase(op=swap_time, name=name + more, args=(x, lengths), zeros=True)
            back = np.ascontiguousarray(x.swapaxes(0, 1))
            yield OpCase(op=swap_time, name=f"{name}{more}, back", args=(back, lengths, False), zeros=True)
    x = normal(rng, 3, 5, 14)
    yield OpCase(op=swap_time, name="half of the channels", args=(Arg(x, view=lambda a: a[:, :, 7:]),))
    lengths = np.array([2, 0, 5], np.int32)
    function = Function(
        lambda x: (swap_time(x, lengths), None),
        lambda dy, saved: swap_time(np.ascontiguousarray(dy), lengths, batch_first=False),
    )
    yield GradientCase(ops=(swap_time,), name="lengths", function=function, inputs=(rng.normal(size=(3, 5, 7)),))


class Joined(Layer):
    """A recurrent layer with all of its outputs in one row, and its states one by one: forward(x, h, c)."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def forward(self, x: Any, *state: Any, train: Train | None = None, **options: Any) -> tuple[Any, Any]:
        given = state if len(state) == 2 else state[0] if state else None
        outputs, saved = self.layer.forward(x, given, train=train, **options)
        flat = list(_arrays(outputs))
        return array_module(x).concatenate([a.reshape(-1) for a in flat]), (saved, outputs)

    def backward(self, dy: Any, saved: Any) -> tuple[Any, ...]:
        saved, outputs = saved
        self_shapes = [a.shape for a in _arrays(outputs)]
        parts, start = [], 0
        for shape in self_shapes:
            size = int(np.prod(shape))
            parts.append(dy[start : start + size].reshape(shape))
            start += size
        return tuple(_arrays(self.layer.backward(_like(outputs, iter(parts)), saved)))


def _arrays(tree: Any) -> Iterator[Any]:
    for part in tree if isinstance(tree, tuple) else (tree,):
        if isinstance(part, tuple):
            yield from _arrays(part)
        else:
            yield part


def _like(tree: Any, parts: Iterator[Any]) -> Any:
    return tuple(_like(part, parts) for part in tree) if isinstance(tree, tuple) else next(parts)


def layer_cases(rng: np.random.Generator) -> Iterator[Case]:
    forms: dict[str, tuple[dict[str, Any], tuple[int, int], Any]] = {
        "one step": ({}, (2, 1), None),
        "primes": ({}, (3, 5), None),
        "lengths": ({}, (4, 5), np.array([3, 0, 5, 1])),
        "two layers, both directions, lengths": (
            {"num_layers": 2, "bidirectional": True, "dropout": 0.3},
            (3, 4),
            np.array([2, 4, 0]),
        ),
        "no bias": ({"bias": False, "bidirectional": True}, (2, 3), None),
        "empty batch": ({}, (0, 3), None),
        "no steps": ({}, (2, 0), None),
    }
    for name, (how, (B, steps), lengths) in forms.items():
        count = how.get("num_layers", 1) * (2 if how.get("bidirectional") else 1)
        for kind in (RNN, GRU, LSTM):
            inputs = [
                rng.normal(size=(B, steps, 3)),
                *(rng.normal(size=(count, B, 4)) for _ in range(1 + (kind is LSTM))),
            ]
            yield LayerCase(
                layer=kind,
                name=name,
                make=lambda kind=kind, how=how: Joined(kind(3, 4, rng=0, **how)),
                inputs=tuple(inputs),
                options={} if lengths is None else {"lengths": lengths},
                train=TRAIN,
                storages=("float32", "float16", "bfloat16") if name == "lengths" else ("float32",),
            )
    for name, B in (("one row", 1), ("primes", 5), ("empty batch", 0)):
        for cell in (RNNCell, GRUCell, LSTMCell):
            states = [rng.normal(size=(B, 4)) for _ in range(1 + (cell is LSTMCell))]
            yield LayerCase(
                layer=cell,
                name=name,
                make=lambda cell=cell: Joined(cell(3, 4, rng=0)),
                inputs=(rng.normal(size=(B, 3)), *states),
            )


MAKERS: list[Maker] = [cell_ops, cell_gradients, swap_cases, layer_cases]
