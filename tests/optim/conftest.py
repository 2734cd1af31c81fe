from collections.abc import Callable

import numpy as np
import pytest

from gpulayers.layers.layer import Layer
from gpulayers.optim import Optimizer
from gpulayers.parameter import Parameter


class Weights(Layer):
    """A layer that only holds parameters of the given values."""

    def __init__(self, dtype: str = "float64", **values: object) -> None:
        for name, value in values.items():
            setattr(self, name, Parameter(np.array(value, dtype)))


@pytest.fixture
def weights() -> Callable[..., Weights]:
    return Weights


@pytest.fixture
def model(rng: np.random.Generator) -> Weights:
    """Two matrices, a vector, an empty matrix, sizes that need padding; float32."""
    return Weights(
        "float32",
        weight=rng.normal(size=(5, 7)),
        bias=rng.normal(size=9),
        empty=np.zeros((0, 3)),
        table=rng.normal(size=(3, 4)),
    )


def set_gradients(model: Layer, rng: np.random.Generator, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Random gradients for all parameters; returns them."""
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients[name] = (rng.normal(size=parameter.shape) * scale).astype(parameter.dtype)
        parameter.add_grad(gradients[name])
    return gradients


@pytest.fixture
def gradients() -> Callable[..., dict[str, np.ndarray]]:
    return set_gradients


def bits_of(optimizer: Optimizer) -> dict[str, bytes]:
    """Every bit of parameters and moments."""
    found = {"data": optimizer.flat.data.tobytes()}
    return found | {name: buffer.tobytes() for name, buffer in optimizer._moments.items()}


@pytest.fixture
def bits() -> Callable[[Optimizer], dict[str, bytes]]:
    return bits_of
