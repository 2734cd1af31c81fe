"""Initial values of parameters: `init(shape, rng, ...) -> float64 array`, drawn by NumPy whatever the backend.

Fans follow the layout of `Linear`: shape (fan_in, fan_out), or (..., outputs) with fan_in the product of all axes but
the last; what has one dimension gives `fan_in` itself. The matrices of `dirac` and `sparse` are laid out in this way
too: PyTorch's, (outputs, inputs, ...), are their transposes. All of `torch.nn.init` is here, under its names without
the underscore and with its defaults, but for `uniform`, which is centred unless it is told a and b.

Sources: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010 (Xavier);
He, Zhang, Ren and Sun, Delving deep into rectifiers, 2015 (He, Kaiming); Martens, Deep learning via Hessian-free
optimization, 2010, section 5 (sparse); Zagoruyko and Komodakis, DiracNets, 2017 (Dirac); Saxe, McClelland and Ganguli,
Exact solutions to the nonlinear dynamics of learning in deep linear neural networks, 2013 (orthogonal); Radford et al.,
Language models are unsupervised multitask learners, 2019 (GPT-2).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.parameter import check_room

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


class Nothing(np.random.Generator):
    """Draws zeros, which take no time: for a model whose values will be overwritten, by those of a file say."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        return np.zeros(size or ())

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.zeros(size or ())


def _fans(shape: Shape) -> tuple[int, int]:
    if len(shape) < 2:
        raise ValueError(f"this initialiser needs a matrix (fan_in, fan_out), got shape {shape}")
    return math.prod(shape[:-1]), shape[-1]


def zeros(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    check_room(shape)
    return np.zeros(shape)


def ones(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    check_room(shape)
    return np.ones(shape)


def constant(shape: Shape, rng: np.random.Generator, val: float = 0.0) -> np.ndarray:
    check_room(shape)
    return np.full(shape, float(val))


def uniform(
    shape: Shape, rng: np.random.Generator, bound: float = 1.0, *, a: float | None = None, b: float | None = None
) -> np.ndarray:
    """Uniform in [-bound, bound), or in [a, b) with both of those."""
    if (a is None) != (b is None):
        raise ValueError(f"uniform takes a and b together, got {a} and {b}")
    low, high = (-bound, bound) if a is None or b is None else (a, b)
    if not low <= high:
        raise ValueError(f"uniform: the range must not be empty, got {low}..{high}")
    check_room(shape)
    return rng.uniform(low, high, shape)


def normal(shape: Shape, rng: np.random.Generator, std: float = 1.0, mean: float = 0.0) -> np.ndarray:
    check_room(shape)
    return rng.normal(mean, std, shape)


def trunc_normal(
    shape: Shape, rng: np.random.Generator, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> np.ndarray:
    """Normal, with what lies outside a..b drawn again; a and b are values, not numbers of standard deviations."""
    if not a < b or not std > 0:
        raise ValueError(f"trunc_normal takes a below b and a std above 0, got {a}, {b} and {std}")
    check_room(shape)
    if a > mean:  # the lower tail of a distribution function has all its digits, the upper one ends in 1
        return 2 * mean - trunc_normal(shape, rng, mean, std, 2 * mean - b, 2 * mean - a)
    from statistics import NormalDist  # brings fractions and decimals, which nothing else needs

    normal_distribution = NormalDist(mean, std)
    low, high = normal_distribution.cdf(a), normal_distribution.cdf(b)
    if high - low < 0.05:  # drawing again would take long, or for ever
        parts = np.maximum(rng.uniform(low, high, shape), np.finfo(np.float64).tiny)
        return np.clip(np.array([normal_distribution.inv_cdf(p) for p in parts.flat]), a, b).reshape(shape)
    values = rng.normal(mean, std, shape)
    while (outside := (values < a) | (values > b)).any():
        values[outside] = rng.normal(mean, std, int(outside.sum()))
    return values


def eye(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Ones on the diagonal of a matrix: as many inputs as there are outputs pass through."""
    if len(shape) != 2:
        raise ValueError(f"eye takes a matrix, got shape {shape}")
    check_room(shape)
    return np.eye(*shape)


def dirac(shape: Shape, rng: np.random.Generator, groups: int = 1) -> np.ndarray:
    """A kernel (*size, inputs of a group, outputs) that passes on as many channels as it can: 1 in the middle."""
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"dirac takes a kernel (*size, inputs, outputs) with one to three sizes, got shape {shape}")
    inputs, outputs = shape[-2:]
    if groups < 1 or outputs % groups:
        raise ValueError(f"dirac: groups must divide the outputs, got {groups} and {outputs}")
    kernel, per_group = np.zeros(shape), outputs // groups
    middle = tuple(size // 2 for size in shape[:-2])
    for group in range(groups):
        for channel in range(min(inputs, per_group)):
            kernel[(*middle, channel, group * per_group + channel)] = 1.0
    return kernel


def sparse(shape: Shape, rng: np.random.Generator, sparsity: float = 0.9, std: float = 0.01) -> np.ndarray:
    """Normal, with as many zeros in each column, the part `sparsity` rounded up: each unit sees few inputs."""
    if len(shape) != 2:
        raise ValueError(f"sparse takes a matrix, got shape {shape}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparse: sparsity must be in 0..1, got {sparsity}")
    values = rng.normal(0.0, std, shape)
    order = rng.permuted(np.broadcast_to(np.arange(shape[0])[:, None], shape), axis=0)
    values[order < math.ceil(sparsity * shape[0])] = 0.0
    return values


def gain(activation: str, negative_slope: float = 0.01) -> float:
    """The factor on the standard deviation that makes up for what an activation takes from the signal.

    "linear" and "sigmoid" 1, "tanh" 5/3, "relu" sqrt(2), "leaky_relu" sqrt(2 / (1 + negative_slope^2)) (He et al.,
    equation 15), "selu" 3/4. For use as `init=functools.partial(he_normal, gain=gain("leaky_relu", 0.2))`.
    """
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + negative_slope**2)),
        "selu": 0.75,
    }
    if activation not in gains:
        raise ValueError(f"gain: activation must be one of {', '.join(gains)}, got {activation!r}")
    return gains[activation]


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """`gain` under PyTorch's name: param is the negative slope of leaky_relu; linear and convolutions have 1."""
    if nonlinearity.startswith("conv"):
        nonlinearity = "linear"
    return gain(nonlinearity, 0.01 if param is None else param)


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


def he_uniform(shape: Shape, rng: np.random.Generator, gain: float = math.sqrt(2), mode: str = "fan_in") -> np.ndarray:
    """Variance gain^2 / fan, uniform. mode: "fan_in" keeps the signal's size forward, "fan_out" backward.

    The default gain sqrt(2) is that of ReLU. PyTorch's own default, a = 0 of leaky_relu, is the same.
    """
    return uniform(shape, rng, gain * math.sqrt(3 / _fan(shape, mode)))


def he_normal(shape: Shape, rng: np.random.Generator, gain: float = math.sqrt(2), mode: str = "fan_in") -> np.ndarray:
    """Variance gain^2 / fan, normal; see `he_uniform`."""
    return normal(shape, rng, gain / math.sqrt(_fan(shape, mode)))


def _fan(shape: Shape, mode: str) -> int:
    fans = dict(zip(("fan_in", "fan_out"), _fans(shape), strict=True))
    if mode not in fans:
        raise ValueError(f"mode must be fan_in or fan_out, got {mode!r}")
    return max(1, fans[mode])


def kaiming_uniform(
    shape: Shape, rng: np.random.Generator, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> np.ndarray:
    """`he_uniform` with PyTorch's arguments: the gain is `calculate_gain(nonlinearity, a)`."""
    return he_uniform(shape, rng, calculate_gain(nonlinearity, a), mode)


def kaiming_normal(
    shape: Shape, rng: np.random.Generator, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> np.ndarray:
    """`he_normal` with PyTorch's arguments: the gain is `calculate_gain(nonlinearity, a)`."""
    return he_normal(shape, rng, calculate_gain(nonlinearity, a), mode)


glorot_uniform, glorot_normal = xavier_uniform, xavier_normal  # the field has two names for each


def orthogonal(shape: Shape, rng: np.random.Generator, gain: float = 1.0) -> np.ndarray:
    """gain times a matrix with orthonormal rows or columns (whichever are fewer), uniform over all such matrices."""
    rows, cols = _fans(shape)
    check_room(shape)
    gauss = rng.normal(size=(max(rows, cols), min(rows, cols)))
    q, r = np.linalg.qr(gauss)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # without the signs of R the distribution would not be uniform
    return gain * (q if rows >= cols else q.T).reshape(shape)


def gpt2(shape: Shape, rng: np.random.Generator, residual_layers: int = 0) -> np.ndarray:
    """Normal with standard deviation 0.02, and 0.02 / sqrt(residual_layers) for projections back into the residual."""
    return normal(shape, rng, 0.02 / math.sqrt(residual_layers or 1))
