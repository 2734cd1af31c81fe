"""Softmax, masked softmax, attention and rotary positions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpulayers.masks import causal_mask, padding_mask
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward
from gpulayers.ops.op import Op
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.ops.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from gpulayers.step import Key
from gpulayers.verify.case import Arg, Case, Function, GradientCase, Maker, OpCase, exact, written
from gpulayers.verify.cases.inputs import EXTREMES, normal, rows

DRAW = Key(seed=3, step=5, call=1, first_sample=2)
CANCELS = "the gradient is a difference of nearly equal terms where few entries count"


def softmax_cases(forward: Op, backward: Op) -> Maker:
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for r in rows(rng, "V", std=3):
            x = r.x * np.float32(0.25) if r.name == "float16 extremes" else r.x  # a difference must fit in float16
            dy, y = normal(rng, *x.shape), forward.reference(x)
            yield OpCase(op=forward, name=r.name, args=(r.arg(x),), large=r.large)
            terms = dy if forward is log_softmax else dy * y
            yield OpCase(
                op=backward,
                name=r.name,
                args=(r.arg(dy), r.arg(y)),
                factor=3,
                scale=float(np.abs(terms).max(initial=0)),
                why=CANCELS,
                large=r.large,
            )
        nothing = np.full((2, 33), -np.inf, np.float32)
        yield OpCase(op=forward, name="a row of -inf", args=(nothing,), zeros=True)
        yield OpCase(op=forward, name="all far below 0", args=(normal(rng, 3, 33, mean=-1e4),))

        def run(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            y = forward(x)
            return y, y

        for cols in (1, 5, 33):
            inputs = (rng.normal(0, 2, (4, cols)),)
            yield GradientCase(
                ops=(forward, backward), name=f"V {cols}", function=Function(run, backward), inputs=inputs
            )

    return cases


class Masked(NamedTuple):
    """Scores (B, H, T, S) under a mask."""

    name: str
    shape: tuple[int, int, int, int]
    hide: np.ndarray | None = None
    causal: bool = False


def masks(rng: np.random.Generator) -> Iterator[Masked]:
    yield Masked("no mask", (2, 2, 5, 7))
    yield Masked("one key", (1, 2, 3, 1))
    yield Masked("causal", (1, 2, 33, 33), causal=True)
    yield Masked("causal, fewer queries than keys", (1, 1, 3, 8), causal=True)
    yield Masked("causal, more queries than keys", (1, 1, 8, 3), causal=True)  # the first rows see nothing
    padding = padding_mask(lengths=np.array([0, 3, 9]), size=9)
    yield Masked("padding", (3, 2, 4, 9), padding)
    yield Masked("padding and causal", (3, 1, 9, 9), padding, causal=True)
    yield Masked("any mask and causal", (2, 2, 9, 9), rng.random((2, 2, 9, 9)) < 0.4, causal=True)
    yield Masked("all masked", (1, 2, 4, 35), np.ones((1, 1, 1, 35), bool))
    yield Masked("empty batch", (0, 2, 4, 4), causal=True)
    yield Masked("no keys", (1, 2, 4, 0))


def masked_softmax_cases(rng: np.random.Generator) -> Iterator[Case]:
    for m in masks(rng):
        scores, dw = normal(rng, *m.shape, std=3), normal(rng, *m.shape)
        options = (m.hide, 0.7, m.causal)
        weights = masked_softmax.reference(scores, *options)
        yield OpCase(op=masked_softmax, name=m.name, args=(scores, *options), zeros=True)
        scale = float(np.abs(dw * weights).max(initial=0))
        yield OpCase(
            op=masked_softmax_backward,
            name=m.name,
            args=(dw, weights, *options),
            factor=3,
            scale=scale,
            why=CANCELS,
            zeros=True,
        )
        yield OpCase(op=masked_softmax, name=f"{m.name}, soft cap", args=(scores, *options, 2.0), zeros=True)
        if m.hide is not None or m.causal:
            poisoned = np.where(hidden(m), np.float32(np.nan), scores)
            for more, cap in (("NaN hidden", 0.0), ("NaN hidden, soft cap", 2.0)):
                args = (poisoned, *options, cap)
                yield OpCase(op=masked_softmax, name=f"{m.name}, {more}", args=args, zeros=True)
    extremes = np.tile(EXTREMES, (1, 1, 2, 1))
    yield OpCase(op=masked_softmax, name="float16 extremes", args=(extremes, None, 1.0, False))
    view = Arg(normal(rng, 1, 2, 9, 4), view=lambda a: a.swapaxes(-1, -2))
    yield OpCase(op=masked_softmax, name="transposed view", args=(view, None, 1.0, True), zeros=True)
    long = normal(rng, 1, 1, 2, 1025, std=3)
    yield OpCase(op=masked_softmax, name="1025 keys", args=(long, None, 1.0, True), zeros=True, large=True)
    for m in masks(rng):
        if m.shape[3] and m.shape[0]:
            yield masked_softmax_gradient(rng, m)


def hidden(m: Masked) -> np.ndarray:
    """What the mask and `causal` hide, (B, H, T, S)."""
    future = causal_mask(*m.shape[2:]) if m.causal else np.zeros(m.shape[2:], bool)
    return np.broadcast_to(future if m.hide is None else future | m.hide, m.shape)


def masked_softmax_gradient(rng: np.random.Generator, m: Masked) -> Case:
    options = (m.hide, 0.7, m.causal)

    def run(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = masked_softmax(scores, *options)
        return weights, weights

    function = Function(run, lambda dw, weights: masked_softmax_backward(dw, weights, *options))
    ops = (masked_softmax, masked_softmax_backward)
    return GradientCase(ops=ops, name=m.name, function=function, inputs=(rng.normal(0, 2, m.shape),))


def attention_cases(rng: np.random.Generator) -> Iterator[Case]:
    for m in masks(rng):
        for kind, group, p, cap in (
            ("", 1, 0.0, 0.0),
            (", grouped heads and dropout", 2, 0.3, 0.0),
            (", soft cap", 1, 0.0, 1.5),
        ):
            B, H, T, S = m.shape
            if H % group:
                continue
            q, k, v = normal(rng, B, T, H, 4), normal(rng, B, S, H // group, 4), normal(rng, B, S, H // group, 3)
            dout = normal(rng, B, T, H, 3)
            options = (m.hide, m.causal, 0.5, p, DRAW if p else None)
            capped = {"softcap": cap}
            name = m.name + kind
            yield OpCase(
                op=attention,
                name=name,
                args=(q, k, v, *options),
                options=capped,
                compared=normalised,
                factor=2,
                why="three ops",
            )
            out, weights, inverse = attention.reference(q, k, v, *options, **capped)
            gradients = tuple(written(np.full(x.shape, np.nan, np.float32)) for x in (q, k, v))
            yield OpCase(
                op=attention_backward,
                name=name,
                args=(dout, q, k, v, out, weights, exact(inverse), *options, *gradients),
                options=capped,
                factor=3,
                scale=float(np.abs(dout).max(initial=0)) / 10,
                why=CANCELS,
            )
            if B and S:
                yield attention_gradient(name, (q, k, v), options, cap)


def normalised(results: list[Any]) -> list[Any]:
    """A body may scale each row of the saved weights as it likes: weights times inverse are compared."""
    out, weights, inverse = results
    return [out, weights if inverse is None else (weights * inverse[..., None]).astype(weights.dtype)]


def attention_gradient(name: str, inputs: tuple[np.ndarray, ...], options: tuple[Any, ...], cap: float) -> Case:
    def run(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        out, weights, inverse = attention(q, k, v, *options, softcap=cap)
        return out, (q, k, v, out, weights, inverse)

    def backward(dout: np.ndarray, saved: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        gradients = [np.empty_like(x) for x in saved[:3]]
        return attention_backward(dout, *saved, *options, *gradients, softcap=cap)

    inputs = tuple(x.astype(np.float64) for x in inputs)
    return GradientCase(ops=(attention, attention_backward), name=name, function=Function(run, backward), inputs=inputs)


def rotary_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, shape, start in (
        ("one position", (2, 1, 3, 2), 0),
        ("far positions", (2, 5, 3, 8), 100000),
        ("empty batch", (0, 3, 2, 4), 0),
    ):
        x = normal(rng, *shape)
        cos, sin = (exact(t) for t in rotary_tables(shape[1], shape[3], 10000.0, x, start))
        yield OpCase(op=rotary, name=name, args=(x, cos, sin))
        out = written(np.full(shape, np.nan, np.float32))
        yield OpCase(op=rotary, name=f"{name}, into out", args=(x, cos, sin), options={"out": out})
        x = written(x)
        yield OpCase(op=rotary, name=f"{name}, in place", args=(x, cos, sin), options={"out": x})
    view = Arg(normal(rng, 2, 3, 5, 4), view=lambda a: a.swapaxes(1, 2))
    cos, sin = rotary_tables(5, 4, 10000.0, view.array)
    yield OpCase(op=rotary, name="transposed view", args=(view, exact(cos), exact(sin)))
    cos, sin = rotary_tables(5, 4, 10000.0, np.zeros(1))
    function = Function(lambda x: (rotary(x, cos, sin), None), lambda dy, saved: rotary(dy, cos, -sin))
    yield GradientCase(ops=(rotary,), name="any", function=function, inputs=(rng.normal(size=(2, 5, 3, 4)),))


MAKERS: list[Maker] = [
    softmax_cases(softmax, softmax_backward),
    softmax_cases(log_softmax, log_softmax_backward),
    masked_softmax_cases,
    attention_cases,
    rotary_cases,
]
