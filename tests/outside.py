"""Values from outside: the cases in tests/vectors/*.npz, which make_vectors.py wrote with PyTorch in float64."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tolerances import assert_close

from gpulayers.layers.layer import Layer
from gpulayers.verify.tolerances import LAYER

DTYPES = ["float64", "float32"]
FACTOR = {"float64": 100, "float32": LAYER}  # 1e-10, and what `check_layer` allows a layer of several ops

Arrays = dict[str, np.ndarray]


@cache
def load(name: str) -> Arrays:
    with np.load(Path(__file__).parent / "vectors" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@dataclass
class Case:
    """Inputs, parameters and dy of one case, and what PyTorch made of them."""

    inputs: list[np.ndarray]
    parameters: Arrays
    y: np.ndarray
    dy: np.ndarray
    input_gradients: list[np.ndarray]  # of floating inputs
    parameter_gradients: Arrays


def case(file: str, name: str) -> Case:
    found = part(load(file), f"{name}/")
    if not found:
        raise KeyError(f"no case {name!r} in {file}.npz")
    return Case(
        inputs=numbered(found, "x"),
        parameters=part(found, "parameter "),
        y=found["y"],
        dy=found["dy"],
        input_gradients=numbered(found, "dx"),
        parameter_gradients=part(found, "gradient "),
    )


def part(arrays: Arrays, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def numbered(arrays: Arrays, prefix: str) -> list[np.ndarray]:
    return [arrays[f"{prefix}{i}"] for i in range(10) if f"{prefix}{i}" in arrays]


def case_names(file: str) -> set[str]:
    return {key.partition("/")[0] for key in load(file) if "/" in key}


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def check_case(layer: Layer, wanted: Case, dtype: str, **options: Any) -> None:
    """Output, gradients of inputs and of parameters; the layer's parameter names are those of the case."""
    layer.to(dtype=dtype).load_state_dict(wanted.parameters)
    y, saved = layer.forward(*(cast(x, dtype) for x in wanted.inputs), **options)
    close(y, wanted.y, dtype)
    dx = layer.backward(cast(wanted.dy, dtype), saved)
    found = [g for g in (dx if isinstance(dx, tuple) else (dx,)) if g is not None]
    assert len(found) == len(wanted.input_gradients)
    for a, b in zip(found, wanted.input_gradients, strict=True):
        close(a, b, dtype)
    largest = max((float(np.abs(g).max()) for g in wanted.parameter_gradients.values()), default=0.0)
    for name, parameter in layer.named_parameters():
        gradient = wanted.parameter_gradients[name]
        if np.abs(gradient).max() < 1e-12 * largest:  # 0 but for PyTorch's rounding, as of the bias of attention's keys
            close(parameter.grad / largest + 1, np.ones(gradient.shape), dtype)
        else:
            close(parameter.grad, gradient, dtype)


def close(found: object, wanted: object, dtype: str) -> None:
    assert_close(found, wanted, dtype, factor=FACTOR[dtype])
