"""Initial values of parameters: `init(shape, rng, ...) -> float64 array`, drawn by NumPy whatever the backend.

Fans follow the layout of `Linear`: shape (fan_in, fan_out); what has one dimension gives `fan_in` itself.

Sources: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010 (Xavier);
He, Zhang, Ren and Sun, Delving deep into rectifiers, 2015 (He); Saxe, McClelland and Ganguli, Exact solutions to the
nonlinear dynamics of learning in deep linear neural networks, 2013 (orthogonal); Radford et al., Language models are
unsupervised multitask learners, 2019 (GPT-2).
"""

import math
from collections.abc import Callable

import numpy as np

Shape = tuple[int, ...]
Rng = np.random.Generator | int | None
Init = Callable[[Shape, np.random.Generator], np.ndarray]


def generator(rng: Rng) -> np.random.Generator:
    """A NumPy generator from a generator (itself), a seed, or None (fresh entropy: not reproducible)."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is not None and (not hasattr(rng, "__index__") or rng < 0):
        raise ValueError(f"rng must be a numpy Generator, a seed of 0 or more, or None, got {rng!r}")
    return np.random.default_rng(rng)


def _fans(shape: Shape) -> tuple[int, int]:
    if len(shape) < 2:
        raise ValueError(f"this initialiser needs a matrix (fan_in, fan_out), got shape {shape}")
    return math.prod(shape[:-1]), shape[-1]


def zeros(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(shape)


def ones(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return np.ones(shape)


def uniform(shape: Shape, rng: np.random.Generator, bound: float = 1.0) -> np.ndarray:
    """Uniform in [-bound, bound)."""
    return rng.uniform(-bound, bound, shape)


def normal(shape: Shape, rng: np.random.Generator, std: float = 1.0) -> np.ndarray:
    """Normal with mean 0."""
    return rng.normal(0.0, std, shape)


def gain(activation: str, negative_slope: float = 0.01) -> float:
    """The factor on the standard deviation that makes up for what an activation takes from the signal.

    "linear" and "sigmoid" 1, "tanh" 5/3, "relu" sqrt(2), "leaky_relu" sqrt(2 / (1 + negative_slope^2)) (He et al.,
    equation 15). For use as `init=functools.partial(he_normal, gain=gain("leaky_relu", 0.2))`.
    """
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + negative_slope**2)),
    }
    if activation not in gains:
        raise ValueError(f"gain: activation must be one of {', '.join(gains)}, got {activation!r}")
    return gains[activation]


def fan_in_uniform(shape: Shape, rng: np.random.Generator, fan_in: int | None = None) -> np.ndarray:
    """Uniform in +-1/sqrt(fan_in): the usual default of linear layers."""
    fan_in = _fans(shape)[0] if fan_in is None else fan_in
    return uniform(shape, rng, 1 / math.sqrt(max(1, fan_in)))


def xavier_uniform(shape: Shape, rng: np.random.Generator, gain: float = 1.0) -> np.ndarray:
    """Variance gain^2 2 / (fan_in + fan_out), uniform."""
    fan_in, fan_out = _fans(shape)
    return uniform(shape, rng, gain * math.sqrt(6 / max(1, fan_in + fan_out)))


def xavier_normal(shape: Shape, rng: np.random.Generator, gain: float = 1.0) -> np.ndarray:
    """Variance gain^2 2 / (fan_in + fan_out), normal."""
    fan_in, fan_out = _fans(shape)
    return normal(shape, rng, gain * math.sqrt(2 / max(1, fan_in + fan_out)))


def he_uniform(shape: Shape, rng: np.random.Generator, gain: float = math.sqrt(2)) -> np.ndarray:
    """Variance gain^2 / fan_in, uniform. The default gain sqrt(2) is that of ReLU."""
    return uniform(shape, rng, gain * math.sqrt(3 / max(1, _fans(shape)[0])))


def he_normal(shape: Shape, rng: np.random.Generator, gain: float = math.sqrt(2)) -> np.ndarray:
    """Variance gain^2 / fan_in, normal. The default gain sqrt(2) is that of ReLU."""
    return normal(shape, rng, gain / math.sqrt(max(1, _fans(shape)[0])))


glorot_uniform, glorot_normal = xavier_uniform, xavier_normal  # the field has two names for each
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(shape: Shape, rng: np.random.Generator, gain: float = 1.0) -> np.ndarray:
    """gain times a matrix with orthonormal rows or columns (whichever are fewer), uniform over all such matrices."""
    rows, cols = _fans(shape)
    gauss = rng.normal(size=(max(rows, cols), min(rows, cols)))
    q, r = np.linalg.qr(gauss)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # without the signs of R the distribution would not be uniform
    return gain * (q if rows >= cols else q.T).reshape(shape)


def gpt2(shape: Shape, rng: np.random.Generator, residual_layers: int = 0) -> np.ndarray:
    """Normal with standard deviation 0.02, and 0.02 / sqrt(residual_layers) for projections back into the residual."""
    return normal(shape, rng, 0.02 / math.sqrt(residual_layers or 1))
