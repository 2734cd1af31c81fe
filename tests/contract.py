"""The layer and op contracts (docs/contract.md) as checks that every test file uses."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from tolerances import assert_close

from gpulayers.gradcheck import gradcheck
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.parameter import Buffer, Parameter
from gpulayers.step import Train
from gpulayers.verify.tolerances import GRADIENT, LAYER


def floating(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def as_tuple(value: Any) -> tuple:
    return value if type(value) is tuple else (value,)


def check_layer(
    make: Callable[[], Layer], *inputs: Any, train: Train | None = None, tied: bool = False, **options: Any
) -> None:
    """Everything that holds for every layer. `make()` returns a fresh float32 layer; inputs are float64 or integer.

    tied: a parameter is used twice in one pass. Two passes then add up as ((a + b) + c) + d, not (a + b) + (c + d),
    so their sum is compared to rounding instead of bit for bit.
    """
    gradcheck(make(), *inputs, train=train, tolerance=GRADIENT, **options)
    layer = make().to(dtype="float64")
    buffers = {name: np.copy(buffer.data) for name, buffer in layer._unique(Buffer)}
    check_two_passes(layer, inputs, train, options, tied)
    for name, buffer in layer._unique(Buffer):
        assert np.array_equal(buffer.data, buffers[name]), f"{name} was written before the optimizer's step"
    check_nothing_left(layer)
    check_float32(make(), inputs, train, options)


def run(layer: Layer, inputs: tuple, train: Train | None, options: dict) -> tuple[Any, Any]:
    if train is not None:
        options = {**options, "train": train.snapshot()}
    return layer.forward(*inputs, **options)


def backward(layer: Layer, y: Any, dy: tuple, saved: Any) -> tuple:
    return as_tuple(layer.backward(dy if isinstance(y, tuple) else dy[0], saved))


def gradients(layer: Layer) -> list[np.ndarray]:
    return [p.grad.copy() for p in layer.parameters()]


def check_two_passes(layer: Layer, inputs: tuple, train: Train | None, options: dict, tied: bool = False) -> None:
    """Two forwards, then two backwards in either order: each gives what it gives alone, and gradients add exactly."""
    rng = np.random.default_rng(1)
    other = tuple(x + rng.normal(size=x.shape) if floating(x) else x for x in inputs)
    y, saved = run(layer, inputs, train, options)
    dy = tuple(rng.normal(size=part.shape) for part in as_tuple(y))
    layer.zero_grad()
    dx_alone = backward(layer, y, dy, saved)
    alone = gradients(layer)
    layer.zero_grad()
    y2, saved2 = run(layer, other, train, options)
    backward(layer, y2, dy, saved2)
    alone2 = gradients(layer)

    for first in (0, 1):
        layer.zero_grad()
        passes = [(inputs, *run(layer, inputs, train, options)), (other, *run(layer, other, train, options))]
        before = [d.copy() for d in dy]
        found = {}
        for which in (first, 1 - first):
            found[which] = backward(layer, passes[which][1], dy, passes[which][2])
        for was, now in zip(before, dy, strict=True):
            assert np.array_equal(was, now), "backward wrote dy"
        for a, b in zip(dx_alone, found[0], strict=True):
            assert (a is None and b is None) or np.array_equal(a, b), "a pass disturbed another"
        for total, a, b in zip(gradients(layer), alone, alone2, strict=True):
            if tied:
                assert_close(total, a + b, "float64")
            else:
                assert np.array_equal(total, a + b), "gradients of two passes do not add"


def check_nothing_left(layer: Layer) -> None:
    """No array on the layer or below it, other than in Parameters and Buffers."""
    for name, member in [("", layer), *layer.named_layers()]:
        for attribute, value in vars(member).items():
            if isinstance(value, Parameter | Buffer | Layer):
                continue
            assert not isinstance(value, np.ndarray), f"{name}.{attribute} is an array that forward or backward left"
            if isinstance(value, list | tuple | dict):
                values = value.values() if isinstance(value, dict) else value
                assert not any(isinstance(v, np.ndarray) for v in values), f"{name}.{attribute} holds arrays"


def check_float32(layer: Layer, inputs: tuple, train: Train | None, options: dict) -> None:
    """The float32 path: same values as float64 within the table, no float64 array out of it, `layer(x)` the same."""
    narrow = tuple(x.astype(np.float32) if floating(x) else x for x in inputs)
    y, saved = run(layer, narrow, train, options)
    dy = tuple(np.random.default_rng(2).normal(size=part.shape).astype(np.float32) for part in as_tuple(y))
    if train is None:
        for a, b in zip(as_tuple(layer(*narrow, **options)), as_tuple(y), strict=True):
            assert np.array_equal(a, b), "layer(x) differs from layer.forward(x)"
    layer.zero_grad()
    dx = backward(layer, y, dy, saved)
    found = [*as_tuple(y), *(d for d in dx if d is not None), *gradients(layer)]
    assert all(a.dtype == np.float32 for a in found), f"dtypes {[str(a.dtype) for a in found]} in a float32 step"
    layer.to(dtype="float64")
    layer.zero_grad()
    exact = tuple(x.astype(np.float64) if floating(x) else x for x in narrow)
    y64, saved = run(layer, exact, train, options)
    dx64 = backward(layer, y64, tuple(d.astype(np.float64) for d in dy), saved)
    for a, b in zip(found, [*as_tuple(y64), *(d for d in dx64 if d is not None), *gradients(layer)], strict=True):
        if (
            np.abs(b).max(initial=0) < 1e-12
        ):  # 0 in theory, such as the bias of attention's keys: rounding is all there is
            assert np.abs(a).max(initial=0) < 1e-5
            continue
        assert_close(a, b, "float32", factor=LAYER)


def check_op(op: Op, *args: Any, factor: float = 1.0, **options: Any) -> None:
    """Every body agrees with the float64 reference; arguments are not written; signatures are the same.

    Floating args are float32. Bodies that write into `out=` or `..._inplace` are tested by their own files.
    """
    check_signatures(op)
    exact = op.reference(*(widen(a) for a in args), **{k: widen(v) for k, v in options.items()})
    for name in ("reference", "cpu"):
        if name not in op.bodies:
            continue
        before = [np.copy(a) if isinstance(a, np.ndarray) else a for a in args]
        found = op.bodies[name](*args, **options)
        for was, now in zip(before, args, strict=True):
            if isinstance(now, np.ndarray):
                assert np.array_equal(was, now, equal_nan=floating(now)), f"{op.name}.{name} wrote an argument"
        for a, b in zip(as_tuple(found), as_tuple(exact), strict=True):
            if b is not None:
                assert np.asarray(a).dtype == np.float32 or not floating(np.asarray(b)), f"{op.name}.{name}: {a.dtype}"
                assert_close(a, b, "float32", factor)


def check_signatures(op: Op) -> None:
    wanted = inspect.signature(op.reference)
    for name, body in op.bodies.items():
        assert inspect.signature(body) == wanted, f"{op.name}.{name} has another signature than the reference"


def widen(a: Any) -> Any:
    return a.astype(np.float64) if floating(a) else a
