"""The steps of recurrent networks, and the change between (B, T, C) and (T, B, C)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.layers.layer import Layer
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.op import Op
from gpulayers.ops.rnn_cell import rnn_cell, rnn_cell_backward
from gpulayers.ops.swap_time import swap_time
from gpulayers.step import Train
from gpulayers.verify.case import Arg, Case, Function, GradientCase, Maker, OpCase, transposed
from gpulayers.verify.cases.inputs import EXTREMES, normal

SHAPES = {"H 1": (3, 1), "H 5": (4, 5), "H 1023": (2, 1023), "transposed view": (5, 6), "empty batch": (0, 5)}
STEP = 1  # rows of length 0 and 1 are idle in it


def lengths_of(rows: int) -> dict[str, Any]:
    """Every row active, some of them, none."""
    some = np.resize(np.array([2, 0, 1, 3], np.int32), rows)
    return {"": None, ", lengths": some, ", all idle": np.zeros(rows, np.int32)}


def cell_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, (B, H) in SHAPES.items():
        for more, lengths in lengths_of(B).items():
            for op, kind, args in calls(rng, B, H):
                if name == "transposed view":
                    args = [transposed(a) if isinstance(a, np.ndarray) and a.ndim == 2 else a for a in args]
                yield OpCase(op=op, name=f"{name}{more}{kind}", args=(*args, lengths, STEP))
    x = np.stack([np.roll(EXTREMES, i)[:8] for i in range(2)]) / np.float32(2)  # the sum of two stays in float16
    state = np.clip(x[:, :2], -100, 100)
    yield OpCase(op=rnn_cell, name="float16 extremes, relu", args=(x, x, x, "relu"))
    yield OpCase(op=rnn_cell, name="float16 extremes", args=(x, x, x))
    yield OpCase(op=gru_cell, name="float16 extremes", args=(x[:, :6], x[:, :6], None, x[:, :2]))
    yield OpCase(op=lstm_cell, name="float16 extremes", args=(x, x, state, state))


def calls(rng: np.random.Generator, B: int, H: int) -> Iterator[tuple[Op, str, list[Any]]]:
    """(op, name of the form, arguments before lengths)."""
    h, c, dy, direct, product, dc = (normal(rng, B, H) for _ in range(6))
    for f in ("tanh", "relu"):
        args = [normal(rng, B, H), normal(rng, B, H), h, f]
        yield rnn_cell, f", {f}", args
        yield rnn_cell_backward, f", {f}", [dy, direct, product, rnn_cell(*args), f]
    for kind, bias, given in (("", normal(rng, H), (dy, direct, product)), (", no bias", None, (None, direct, None))):
        args = [normal(rng, B, 3 * H), normal(rng, B, 3 * H), bias, h]
        yield gru_cell, kind, args
        yield gru_cell_backward, kind, [*given, *gru_cell(*args)[1:], h]
    args = [normal(rng, B, 4 * H), normal(rng, B, 4 * H), h, c]
    yield lstm_cell, "", args
    _, c_new, gates = lstm_cell(*args)
    for kind, given in (("", (dy, direct, product, dc)), (", last step", (dy, None, None, None))):
        yield lstm_cell_backward, kind, [*given, gates, c, c_new]


class RNNStep(Layer):
    """forward(gi, gh, h) -> h', as the op has it."""

    def __init__(self, nonlinearity: str, lengths: Any) -> None:
        self.how = (nonlinearity, lengths, STEP)

    def forward(self, gi: Any, gh: Any, h: Any, train: Train | None = None) -> tuple[Any, Any]:
        y = rnn_cell(gi, gh, h, *self.how)
        return y, y

    def backward(self, dy: Any, saved: Any) -> Any:
        da, passed = rnn_cell_backward(None, dy, None, saved, *self.how)
        return da, da, np.zeros_like(da) if passed is None else passed


class GRUStep(Layer):
    """forward(gi, gh, bias, h) -> h'."""

    def __init__(self, lengths: Any) -> None:
        self.how = (lengths, STEP)

    def forward(self, gi: Any, gh: Any, bias: Any, h: Any, train: Train | None = None) -> tuple[Any, Any]:
        y, gates, hn = gru_cell(gi, gh, bias, h, *self.how)
        return y, (gates, hn, h)

    def backward(self, dy: Any, saved: Any) -> Any:
        dgi, dgh, dh = gru_cell_backward(None, dy, None, *saved, *self.how)
        return dgi, dgh, dgh[:, 2 * dh.shape[1] :].sum(axis=0), dh


class LSTMStep(Layer):
    """forward(gi, gh, h, c) -> (h', c')."""

    def __init__(self, lengths: Any) -> None:
        self.how = (lengths, STEP)

    def forward(self, gi: Any, gh: Any, h: Any, c: Any, train: Train | None = None) -> tuple[Any, Any]:
        h_new, c_new, gates = lstm_cell(gi, gh, h, c, *self.how)
        return (h_new, c_new), (gates, c, c_new)

    def backward(self, dy: Any, saved: Any) -> Any:
        da, dc, passed = lstm_cell_backward(None, dy[0], None, dy[1], *saved, *self.how)
        return da, da, np.zeros_like(dc) if passed is None else passed, dc


def gradient_cases(rng: np.random.Generator) -> Iterator[Case]:
    B, H = 4, 3

    def draw(*gates: int) -> tuple[np.ndarray, ...]:
        return tuple(rng.normal(size=(B, count * H)) for count in gates)

    for more, lengths in lengths_of(B).items():
        for f in ("tanh", "relu"):
            step = RNNStep(f, lengths)
            yield GradientCase(ops=(rnn_cell, rnn_cell_backward), name=f + more, function=step, inputs=draw(1, 1, 1))
        gi, gh, h = draw(3, 3, 1)
        name, inputs = f"a step{more}", (gi, gh, rng.normal(size=H), h)
        yield GradientCase(ops=(gru_cell, gru_cell_backward), name=name, function=GRUStep(lengths), inputs=inputs)
        step, inputs = LSTMStep(lengths), draw(4, 4, 1, 1)
        yield GradientCase(ops=(lstm_cell, lstm_cell_backward), name=name, function=step, inputs=inputs)


def swap_cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = {"one element": (1, 1, 1), "primes": (3, 5, 7), "C 1023": (2, 3, 1023), "empty batch": (0, 3, 4)}
    shapes["no steps"] = (3, 0, 4)
    for name, shape in shapes.items():
        for more, most in (("", None), (", lengths", shape[1]), (", all padding", 0)):
            lengths = None if most is None else rng.integers(0, most + 1, shape[0]).astype(np.int32)
            x = normal(rng, *shape)
            yield OpCase(op=swap_time, name=name + more, args=(x, lengths), zeros=True)
            back = np.ascontiguousarray(x.swapaxes(0, 1))
            yield OpCase(op=swap_time, name=f"{name}{more}, back", args=(back, lengths, False), zeros=True)
    half = Arg(normal(rng, 3, 5, 14), view=lambda a: a[:, :, 7:])
    yield OpCase(op=swap_time, name="half of the channels", args=(half,))
    lengths = np.array([2, 0, 5], np.int32)
    function = Function(lambda x: (swap_time(x, lengths), None), lambda dy, saved: swap_time(dy, lengths, False))
    yield GradientCase(ops=(swap_time,), name="lengths", function=function, inputs=(rng.normal(size=(3, 5, 7)),))


MAKERS: list[Maker] = [cell_cases, gradient_cases, swap_cases]
