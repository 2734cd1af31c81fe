"""Activations, dropout, and the sum and product of elements."""

from collections.abc import Iterator

import numpy as np

from gpulayers.ops.add import add
from gpulayers.ops.dropout import dropout
from gpulayers.ops.elementwise import multiply
from gpulayers.ops.gelu import gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace
from gpulayers.ops.op import Op
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward
from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward, silu, silu_with_derivative, tanh, tanh_backward
from gpulayers.step import Key
from gpulayers.verify.case import Case, Function, GradientCase, Maker, OpCase, written
from gpulayers.verify.cases.inputs import normal, rows

DRAW = Key(seed=3, step=5, call=1, first_sample=1 << 40)  # the bits of a sample far beyond 32-bit counters


def of_output(forward: Op, backward: Op) -> Maker:
    """Activations whose backward takes the output."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for r in rows(rng):
            dy = normal(rng, *r.x.shape)
            yield OpCase(op=forward, name=r.name, args=(r.arg(r.x),), large=r.large)
            args = (r.arg(dy), r.arg(forward.reference(r.x)))
            yield OpCase(op=backward, name=r.name, args=args, large=r.large)

        def run(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            y = forward(x)
            return y, y

        yield GradientCase(ops=(forward, backward), name="any", function=Function(run, backward), inputs=(away(rng),))

    return cases


def away(rng: np.random.Generator) -> np.ndarray:
    """(5, 7) values at least 0.1 away from 0, where ReLU has no derivative."""
    x = rng.normal(size=(5, 7))
    return x + np.copysign(0.1, x)


def leaky_relu_cases(rng: np.random.Generator) -> Iterator[Case]:
    for slope in (0.01, 1.5):
        for r in rows(rng):
            name, dy = f"{r.name}, slope {slope}", normal(rng, *r.x.shape)
            if r.name == "float16 extremes" and slope > 1:
                continue  # the product leaves float16
            yield OpCase(op=leaky_relu, name=name, args=(r.arg(r.x), slope), large=r.large)
            args = (r.arg(dy), r.arg(r.x), slope)
            yield OpCase(op=leaky_relu_backward, name=name, args=args, large=r.large)
    function = Function(lambda x: (leaky_relu(x, 0.2), x), lambda dy, x: leaky_relu_backward(dy, x, 0.2))
    yield GradientCase(ops=(leaky_relu, leaky_relu_backward), name="any", function=function, inputs=(away(rng),))


def prelu_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        dy = normal(rng, *r.x.shape)
        for kind, size in (("one slope", 1), ("a slope per channel", r.x.shape[1])):
            weight = rng.uniform(-0.5, 1, size).astype(np.float32)
            name, large = f"{r.name}, {kind}", r.large
            yield OpCase(op=prelu, name=name, args=(r.arg(r.x), weight), large=large)
            terms = float(np.abs(dy * np.minimum(r.x, 0)).sum(axis=0).max(initial=0)) * (
                r.x.shape[1] if size == 1 else 1
            )
            yield OpCase(
                op=prelu_backward,
                name=name,
                args=(r.arg(dy), r.arg(r.x), weight),
                factor=3,
                scale=min(terms, 30.0) / 3,
                why="the slope's gradient is a sum of terms that cancel",
                large=large,
            )

    def run(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        return prelu(x, weight), (x, weight)

    for size in (1, 7):
        yield GradientCase(
            ops=(prelu, prelu_backward),
            name=f"{size} slope{'s' if size > 1 else ''}",
            function=Function(run, lambda dy, saved: prelu_backward(dy, *saved)),
            inputs=(away(rng), rng.uniform(0.1, 0.5, size)),
        )


def gelu_cases(rng: np.random.Generator) -> Iterator[Case]:
    for approximate in ("none", "tanh"):
        for r in rows(rng):
            name, bias = f"{r.name}, approximate {approximate}", normal(rng, r.x.shape[1])
            dy = normal(rng, *r.x.shape)
            for more, b in (("", None), (", bias", bias)):
                if more and (r.large or r.name == "float16 extremes"):
                    continue
                for op in (gelu, gelu_with_derivative):
                    args = (r.arg(r.x), b, approximate)
                    yield OpCase(op=op, name=name + more, args=args, large=r.large)
                args = (r.arg(dy), r.arg(r.x), b, approximate)
                yield OpCase(op=gelu_backward, name=name + more, args=args, large=r.large)
                if not r.view:
                    args = (written(r.x), b, approximate)
                    yield OpCase(op=gelu_with_derivative_inplace, name=name + more, args=args, large=r.large)
        yield from gelu_gradients(rng, approximate)


def gelu_gradients(rng: np.random.Generator, approximate: str) -> Iterator[Case]:
    x = rng.normal(0, 2, (5, 7))

    def inplace(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        derivative = x.copy()
        return gelu_with_derivative_inplace(derivative, None, approximate), derivative

    yield GradientCase(
        ops=(gelu, gelu_backward),
        name=f"approximate {approximate}",
        function=Function(
            lambda x: (gelu(x, None, approximate), x), lambda dy, x: gelu_backward(dy, x, None, approximate)
        ),
        inputs=(x,),
    )
    for op, run in (
        (gelu_with_derivative, lambda x: gelu_with_derivative(x, None, approximate)),
        (gelu_with_derivative_inplace, inplace),
    ):
        yield GradientCase(
            ops=(multiply, op), name=f"approximate {approximate}", function=Function(run, multiply), inputs=(x,)
        )


def silu_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        for op in (silu, silu_with_derivative):
            yield OpCase(op=op, name=r.name, args=(r.arg(r.x),), large=r.large)
    function = Function(silu_with_derivative, multiply)
    yield GradientCase(
        ops=(multiply, silu, silu_with_derivative), name="any", function=function, inputs=(rng.normal(0, 2, (5, 7)),)
    )


def multiply_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        args = (r.arg(normal(rng, *r.x.shape) * np.float32(0.1)), r.arg(r.x))
        yield OpCase(op=multiply, name=r.name, args=args, large=r.large)


def add_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        for kind, shape in (("", r.x.shape), (", a row to all", r.x.shape[1:])):
            b = normal(rng, *shape)
            args = (r.arg(r.x), r.arg(b) if b.ndim == 2 else b)
            yield OpCase(op=add, name=r.name + kind, args=args, large=r.large)
    batch, positions = normal(rng, 3, 5, 7), normal(rng, 5, 7)
    yield OpCase(op=add, name="positions to all samples", args=(batch, positions))
    function = Function(lambda a, b: (add(a, b), None), lambda dy, saved: (dy, dy.sum(axis=0)))
    inputs = (rng.normal(size=(5, 7)), rng.normal(size=7))
    yield GradientCase(ops=(add,), name="a row to all", function=function, inputs=inputs)


def dropout_cases(rng: np.random.Generator) -> Iterator[Case]:
    for p in (0.0, 0.1, 0.5, 1.0):
        for r in rows(rng):
            if r.large and p != 0.1:
                continue
            x = r.x * np.float32(0.4)  # its double must not leave float16
            yield OpCase(op=dropout, name=f"{r.name}, p {p}", args=(r.arg(x), DRAW, p), zeros=True, large=r.large)

    function = Function(lambda x: (dropout(x, DRAW, 0.3), None), lambda dy, saved: dropout(dy, DRAW, 0.3))
    yield GradientCase(ops=(dropout,), name="p 0.3", function=function, inputs=(rng.normal(size=(5, 7)),))


MAKERS: list[Maker] = [
    of_output(relu, relu_backward),
    of_output(sigmoid, sigmoid_backward),
    of_output(tanh, tanh_backward),
    leaky_relu_cases,
    prelu_cases,
    gelu_cases,
    silu_cases,
    multiply_cases,
    add_cases,
    dropout_cases,
]
