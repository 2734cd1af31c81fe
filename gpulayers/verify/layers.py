"""A layer on each device against itself in float64, and its gradients against finite differences."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.backend import is_array, is_floating, to_device, to_numpy
from gpulayers.gradcheck import gradcheck
from gpulayers.layers.layer import Layer
from gpulayers.verify import tolerances
from gpulayers.verify.case import STORAGES, GradientCase, LayerCase
from gpulayers.verify.result import Row, Worst, Wrong, measure

BY_DIFFERENCES = "backward"  # the body whose check is a finite difference


def check_gradient(case: GradientCase) -> Row:
    """The row of a function and its backward pass."""

    def run() -> Worst:
        return Worst(gradcheck(case.function, *case.inputs, tolerance=tolerances.GRADIENT), tolerances.GRADIENT)

    return measure(case, "gradient", BY_DIFFERENCES, "float64", run)


def check_layer(case: LayerCase, device: str, quick: bool) -> Iterator[Row]:
    """The rows of one case. device: 'numpy', or where it runs besides, 'emulated' or 'cupy'."""

    def gradient() -> Worst:
        error = gradcheck(case.make(), *case.inputs, train=case.train, tolerance=tolerances.GRADIENT, **case.options)
        return Worst(error, tolerances.GRADIENT)

    yield measure(case, "layer", BY_DIFFERENCES, "float64", gradient)
    yield measure(case, "layer", "numpy", "float32", functools.partial(compare, case, "numpy", "float32"))
    if device != "numpy":
        for storage in case.storages[: 1 if quick else None]:
            yield measure(case, "layer", device, storage, functools.partial(compare, case, device, storage))


def compare(case: LayerCase, device: str, storage: str) -> Worst:
    """Outputs and all gradients in one storage type on a device, against float64 on the same rounded values."""
    dtype = STORAGES[storage]
    inputs = [x.astype(dtype) if is_floating(x.dtype) else x for x in case.inputs]
    rounded = case.make().to(dtype=dtype).to(dtype=np.float64)
    exact = both_passes(case, rounded, [_widen(x) for x in inputs], storage, "numpy")
    found = both_passes(case, case.make().to(dtype=dtype), inputs, storage, device)
    worst, tolerance = Worst(), tolerances.RELATIVE[storage] * tolerances.LAYER * case.factor
    for a, b in zip(found, exact, strict=True):
        if a.dtype != dtype:
            raise Wrong(f"a {a.dtype} array comes out of a {storage} step")
        # What is 0 in theory, such as the gradient of the keys' bias in attention, is nothing but rounding.
        nothing = np.abs(b).max(initial=0) < 1e-12
        worst = worst.with_result(tolerances.error(a, b, scale=1.0 if nothing else 0.0), tolerance)
    return worst


def both_passes(case: LayerCase, layer: Layer, inputs: list[Any], storage: str, device: str) -> list[np.ndarray]:
    """The outputs, the gradients of the inputs and of the parameters, in host memory."""
    options = {k: to_device(v, device) if is_array(v) else v for k, v in case.options.items()}
    if case.train is not None:
        options["train"] = case.train.snapshot()
    layer.to(device)
    y, saved = layer.forward(*(to_device(x, device) for x in inputs), **options)
    rng = np.random.default_rng(1)
    # The same values for every device and type: rounded to the storage first, then in the output's own type.
    dy = rng.normal(size=y.shape).astype(STORAGES[storage]).astype(y.dtype)
    dx = layer.backward(to_device(dy, device), saved)
    gradients = [d for d in (dx if isinstance(dx, tuple) else (dx,)) if d is not None]
    return [np.asarray(to_numpy(a)) for a in (y, *gradients, *(p.grad for p in layer.parameters()))]


def _widen(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_floating(x.dtype) else x
