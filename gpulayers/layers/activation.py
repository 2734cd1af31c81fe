"""Activations that are one function of each element: ReLU6, Hardtanh, Hardsigmoid, Hardswish, Threshold, Softsign, ELU,
SELU, CELU, Softplus, LogSigmoid, Mish. The formulas stand, each beside its derivative, in gpulayers/ops/activation.py.
"""

from abc import ABC, abstractmethod

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_number, floating_input, gradient_of
from gpulayers.ops.activation import activation, activation_backward
from gpulayers.step import Train


class Activation(Layer, ABC):
    """y = f(x), elementwise, any shape: what the layers below share.

    saved: x, from which backward computes the derivative: in a half type too, it is rounded once, as the product dx.
    Each raises TypeError for an input that is not floating, ValueError for one without axes.
    """

    @property
    @abstractmethod
    def rule(self) -> tuple[str, float, float]:
        """The kind in gpulayers/ops/activation.py, and its numbers p and q."""

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        kind, p, q = self.rule
        floating_input(x, type(self).__name__)
        return activation(kind, x, p, q), x

    def backward(self, dy: Array, saved: Array) -> Array:
        x, (kind, p, q) = saved, self.rule
        gradient_of(dy, x.shape, type(self).__name__)
        return activation_backward(kind, dy, x, p, q)


class Threshold(Activation):
    """y = x where x > threshold, else value. The derivative is 1 and 0; at the threshold itself 0."""

    def __init__(self, threshold: float, value: float) -> None:
        _check_numbers("Threshold", threshold=threshold, value=value)
        self.threshold, self.value = float(threshold), float(value)

    @property
    def rule(self) -> tuple[str, float, float]:
        return "threshold", self.threshold, self.value


class Hardtanh(Activation):
    """y = x held in min_val..max_val. The derivative is 1 inside, 0 outside and at both ends.

    Raises ValueError unless min_val is below max_val.
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        _check_numbers("Hardtanh", min_val=min_val, max_val=max_val)
        if not min_val < max_val:
            raise ValueError(f"Hardtanh: min_val must be below max_val, got {min_val} and {max_val}")
        self.min_val, self.max_val = float(min_val), float(max_val)

    @property
    def rule(self) -> tuple[str, float, float]:
        return "hardtanh", self.min_val, self.max_val


class ReLU6(Activation):
    """y = min(max(x, 0), 6). The derivative is 1 between 0 and 6, else 0; at both ends 0."""

    @property
    def rule(self) -> tuple[str, float, float]:
        return "hardtanh", 0.0, 6.0


class Hardsigmoid(Activation):
    """y = min(max(x + 3, 0), 6) / 6. The derivative is 1/6 between -3 and 3, else 0; at both ends 0.

    Source: Howard et al., Searching for MobileNetV3, 2019, section 5.2.
    """

    @property
    def rule(self) -> tuple[str, float, float]:
        return "hardsigmoid", 0.0, 0.0


class Hardswish(Activation):
    """y = x min(max(x + 3, 0), 6) / 6. The derivative is x/3 + 1/2 between -3 and 3, 0 up to -3, and 1 from 3 on.

    Source: Howard et al., Searching for MobileNetV3, 2019, section 5.2.
    """

    @property
    def rule(self) -> tuple[str, float, float]:
        return "hardswish", 0.0, 0.0


class Softsign(Activation):
    """y = x / (1 + |x|), dy/dx = 1 / (1 + |x|)^2."""

    @property
    def rule(self) -> tuple[str, float, float]:
        return "softsign", 0.0, 0.0


class ELU(Activation):
    """y = x where x > 0, else alpha (exp(x) - 1). The derivative is 1, else alpha exp(x); at 0 it is alpha.

    Source: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by ELUs, 2015, equation 15.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        _check_numbers("ELU", alpha=alpha)
        self.alpha = float(alpha)

    @property
    def rule(self) -> tuple[str, float, float]:
        return "elu", self.alpha, 0.0


class SELU(Activation):
    """y = 1.0507 ELU(x) with alpha = 1.67326: values of mean 0 and variance 1 then tend to stay so from layer to layer.

    Source: Klambauer, Unterthiner, Mayr and Hochreiter, Self-normalizing neural networks, 2017, equation 2.
    """

    @property
    def rule(self) -> tuple[str, float, float]:
        return "selu", 0.0, 0.0


class CELU(Activation):
    """y = x where x > 0, else alpha (exp(x / alpha) - 1), which has no kink at 0 whatever alpha is.

    Raises ValueError for alpha = 0.
    Source: Barron, Continuously differentiable exponential linear units, 2017.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        _check_divisor("CELU", alpha=alpha)
        self.alpha = float(alpha)

    @property
    def rule(self) -> tuple[str, float, float]:
        return "celu", self.alpha, 0.0


class Softplus(Activation):
    """y = log(1 + exp(beta x)) / beta, a smooth max(x, 0); where beta x > threshold it is x itself.

    dy/dx = 1 / (1 + exp(-beta x)), and 1 beyond the threshold. No x overflows, whatever the threshold.
    Raises ValueError for beta = 0.
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        _check_divisor("Softplus", beta=beta)
        _check_numbers("Softplus", threshold=threshold)
        self.beta, self.threshold = float(beta), float(threshold)

    @property
    def rule(self) -> tuple[str, float, float]:
        return "softplus", self.beta, self.threshold


class LogSigmoid(Activation):
    """y = log(1 / (1 + exp(-x))) = -log(1 + exp(-x)), dy/dx = 1 / (1 + exp(x)). All digits are kept at both ends."""

    @property
    def rule(self) -> tuple[str, float, float]:
        return "logsigmoid", 0.0, 0.0


class Mish(Activation):
    """y = x tanh(log(1 + exp(x))).

    Source: Misra, Mish: a self regularized non-monotonic activation function, 2019.
    """

    @property
    def rule(self) -> tuple[str, float, float]:
        return "mish", 0.0, 0.0


LEAST, MOST = 2.0**-126, 3.4e38  # of what is computed in float32


def _check_numbers(who: str, **values: float) -> None:
    check_number(who, **values)
    check_number(who, -MOST, MOST, **values)


def _check_divisor(who: str, **values: float) -> None:
    _check_numbers(who, **values)
    for name, value in values.items():
        if abs(value) < LEAST:
            raise ValueError(f"{who}: {name} must not be 0, got {value}")
