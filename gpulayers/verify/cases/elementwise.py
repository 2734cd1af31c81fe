"""The family of elementwise activations, gated units and softmin: ops and layers."""

from collections.abc import Iterator

import numpy as np

from gpulayers.layers.activation import (
    CELU,
    ELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LogSigmoid,
    Mish,
    ReLU6,
    Softplus,
    Softsign,
    Threshold,
)
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.glu import GEGLU, GLU, SwiGLU
from gpulayers.layers.layer import Layer
from gpulayers.layers.softmin import Softmin
from gpulayers.ops.activation import FORMULAS, activation, activation_backward
from gpulayers.ops.glu import GATES, glu, glu_backward
from gpulayers.ops.softmax import softmin, softmin_backward
from gpulayers.verify.case import Case, Function, GradientCase, LayerCase, Maker, OpCase
from gpulayers.verify.cases.inputs import away_from_kinks, normal, rows
from gpulayers.verify.cases.layers import SMALL, TRAIN, on_last_axis

NUMBERS = {"threshold": (0.5, 7.0), "hardtanh": (-1.25, 2.0), "elu": (0.75,), "celu": (0.5,), "softplus": (2.0, 4.0)}


def activation_cases(rng: np.random.Generator) -> Iterator[Case]:
    for kind in FORMULAS:
        numbers = NUMBERS.get(kind, ())
        for r in rows(rng):
            if kind == "selu" and r.name == "float16 extremes":
                continue  # 1.05 of the largest float16 is none
            if r.large and kind != "mish":
                continue  # a kind changes nothing about lengths
            name, dy = f"{r.name}, {kind}", normal(rng, *r.x.shape)
            yield OpCase(op=activation, name=name, args=(kind, r.arg(r.x), *numbers), large=r.large)
            args = (kind, r.arg(dy), r.arg(r.x), *numbers)
            yield OpCase(op=activation_backward, name=name, args=args, large=r.large)
        yield GradientCase(
            ops=(activation, activation_backward),
            name=kind,
            function=Function(
                lambda x, kind=kind, n=numbers: (activation(kind, x, *n), x),
                lambda dy, x, kind=kind, n=numbers: activation_backward(kind, dy, x, *n),
            ),
            inputs=(away_from_kinks(rng.normal(0, 3, (7, 11))),),
        )


def glu_cases(rng: np.random.Generator) -> Iterator[Case]:
    for gate in GATES:
        for r in rows(rng, word="n"):
            if r.large and gate != "silu":
                continue
            values = normal(rng, *r.x.shape, std=0.4)  # their product with a gate must not leave float16
            x, dy, name = np.concatenate([values, r.x], axis=1), normal(rng, *r.x.shape), f"{r.name}, {gate}"
            if r.name == "float16 extremes":
                x, dy = np.clip(x, -8192, 8192), dy / 8
            yield OpCase(op=glu, name=name, args=(r.arg(x), gate), large=r.large)
            yield OpCase(op=glu_backward, name=name, args=(r.arg(dy), r.arg(x), gate), large=r.large)
        yield GradientCase(
            ops=(glu, glu_backward),
            name=gate,
            function=Function(
                lambda x, gate=gate: (glu(x, gate), x), lambda dy, x, gate=gate: glu_backward(dy, x, gate)
            ),
            inputs=(rng.normal(0, 2, (5, 14)),),
        )


def softmin_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        dy = normal(rng, *r.x.shape)
        yield OpCase(op=softmin, name=r.name, args=(r.arg(r.x),), large=r.large)
        args, terms = (r.arg(dy), r.arg(softmin.reference(r.x))), float(np.abs(dy).max(initial=0))
        why = "dx is a difference of dy and its mean"
        yield OpCase(op=softmin_backward, name=r.name, args=args, scale=terms, why=why, large=r.large)

    def run(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = softmin(x)
        return y, y

    function = Function(run, softmin_backward)
    yield GradientCase(
        ops=(softmin, softmin_backward), name="any", function=function, inputs=(rng.normal(size=(5, 7)),)
    )


def gated_layer_cases(rng: np.random.Generator) -> Iterator[Case]:
    forms = {
        GLU: lambda axis: GLU(axis),
        GEGLU: lambda axis: GEGLU(axis),
        SwiGLU: lambda axis: SwiGLU(axis),
    }
    for layer, make in forms.items():
        for name, shape, axis in (
            ("one element", (1, 2), -1),
            ("primes", (3, 5, 14), -1),
            ("axis 1", (3, 10, 7), 1),
            ("axis 0", (4, 3), 0),
            ("empty batch", (0, 6), -1),
            ("nothing to halve", (3, 0), -1),
        ):
            yield LayerCase(
                layer=layer, name=name, make=lambda make=make, axis=axis: make(axis), inputs=(rng.normal(size=shape),)
            )
    x = rng.normal(size=(3, 5, 14))
    yield LayerCase(layer=GEGLU, name="primes, tanh", make=lambda: GEGLU(approximate="tanh"), inputs=(x,))


def feedforward_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name in ("swiglu", "geglu", "glu", "mish", "selu"):
        yield LayerCase(
            layer=FeedForward,
            name=name,
            make=lambda name=name: FeedForward(5, 12, name, dropout=0.1, rng=0),
            inputs=(rng.normal(size=(3, 2, 5)),),
            train=TRAIN,
        )


def elementwise_layers() -> Iterator[Maker]:
    """Without the extremes, which the op's cases have; away from kinks, where finite differences are of no use."""
    makers: list[tuple[Layer, ...]] = [
        (ReLU6(),),
        (Hardtanh(), Hardtanh(-0.5, 2)),
        (Hardsigmoid(),),
        (Hardswish(),),
        (Threshold(0.5, 7),),
        (Softsign(),),
        (ELU(), ELU(0.75)),
        (SELU(),),
        (CELU(), CELU(0.5)),
        (Softplus(), Softplus(2, 4)),
        (LogSigmoid(),),
        (Mish(),),
    ]
    for forms in makers:
        yield on_last_axis(*(lambda cols, layer=layer: layer for layer in forms))


MAKERS: list[Maker] = [
    activation_cases,
    glu_cases,
    softmin_cases,
    *elementwise_layers(),
    on_last_axis(lambda cols: Softmin(), lambda cols: Softmin(axis=0), shapes=SMALL),
    gated_layer_cases,
    feedforward_cases,
]
