"""`gradcheck`: is the backward pass the derivative of the forward pass?

With all floating inputs and parameters joined in one vector z, a random direction u and a random dy of the output's
shape, the number

    d/dh sum(dy * forward(z + h u))  at h = 0

is found twice: from the backward pass as sum(gradient * u), and by the five-point central difference

    (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / (12 h),    error of order h^4

in float64. One direction costs four forward passes however many parameters there are, and a random one misses nothing.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.backend import is_array, is_floating, to_numpy
from gpulayers.layers.layer import Layer
from gpulayers.step import Train

STEPS = (1e-4, 1e-5)  # the second for functions that bend strongly, such as a norm of nearly constant rows


class GradientError(AssertionError):
    """A gradient disagrees with finite differences; the message says which one, and at which element."""


def gradcheck(
    layer: Layer | Callable[..., tuple[Any, Any]],
    *inputs: Any,
    train: Train | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    **options: Any,
) -> float:
    """Check all gradients of a layer, or of a loss `f(x, ...) -> (loss, dx)`, by finite differences in float64.

    inputs: arrays; floating ones are checked, integers and booleans passed through. options: keyword arguments of
    forward. What is checked is a copy of the layer in float64 on the CPU, wherever the layer and the arrays are; the
    layer itself is not touched.

    Returns the relative error along the random direction. Raises GradientError when it is above `tolerance`, when
    forward writes its inputs, or when backward writes dy.
    """
    return _Check(layer, inputs, train, seed, options).run(tolerance)


def numerical_gradient(function: Callable[[], float], x: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """d function() / d x for every element of x by the five-point central difference; four calls an element.

    x: what function() depends on, in float64; it is moved in place and is afterwards as it was. Returns x's shape.
    """
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        was, values = x[index], {}
        for h in (1, -1, 2, -2):
            x[index] = was + h * step
            values[h] = function()
        x[index] = was
        gradient[index] = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
    return gradient


class _Check:
    """The float64 copies and the random direction of one check."""

    def __init__(self, layer: Any, inputs: tuple[Any, ...], train: Train | None, seed: int, options: dict) -> None:
        self.name = type(layer).__name__ if isinstance(layer, Layer) else getattr(layer, "__name__", str(layer))
        self.layer = copy.deepcopy(layer).to("numpy", np.float64) if isinstance(layer, Layer) else layer
        self.inputs = [_float64(_on_cpu(x)) for x in inputs]
        self.train, self.options = train, {name: _on_cpu(value) for name, value in options.items()}
        self.rng = np.random.default_rng(seed)
        # What is varied: every floating input, then every parameter that is not frozen, each with its name.
        self.names = [f"input {i}" for i, x in enumerate(self.inputs) if _is_floating_array(x)]
        self.values = [x for x in self.inputs if _is_floating_array(x)]
        if isinstance(layer, Layer):
            self.parameters = [(name, p) for name, p in self.layer.named_parameters() if p.trainable]
            self.names.extend(f"parameter {name}" for name, _ in self.parameters)
            self.values.extend(parameter.data for _, parameter in self.parameters)

    def run(self, tolerance: float) -> float:
        outputs = _as_tuple(self._forward()[0])
        self.dy = tuple(self.rng.standard_normal(np.shape(y)) if _is_floating_array(y) else None for y in outputs)
        gradients = self._gradients()
        directions = [self.rng.standard_normal(value.shape) for value in self.values]
        error = self._error(gradients, directions, tolerance)
        if not error <= tolerance:
            raise GradientError(self._where(gradients, directions, tolerance, error))
        return error

    def _forward(self) -> tuple[Any, Any]:
        options = dict(self.options)
        if self.train is not None:
            options["train"] = self.train.snapshot()  # the same random bits every time
        if isinstance(self.layer, Layer):
            return self.layer.forward(*self.inputs, **options)
        return self.layer(*self.inputs, **options)

    def _objective(self) -> float:
        outputs = _as_tuple(self._forward()[0])
        return float(sum(np.sum(dy * y) for dy, y in zip(self.dy, outputs, strict=True) if dy is not None))

    def _gradients(self) -> list[np.ndarray]:
        before = [np.copy(x) for x in self.inputs]
        outputs, saved = self._forward()
        for i, (was, now) in enumerate(zip(before, self.inputs, strict=True)):
            if not np.array_equal(was, now, equal_nan=_is_floating_array(now)):
                raise GradientError(f"{self.name}: forward wrote its input {i}")
        floating = [x for x in self.inputs if _is_floating_array(x)]
        if not isinstance(self.layer, Layer):  # a loss: its second value is the gradient already
            return [self._scaled(g, x) for g, x in zip(_as_tuple(saved), floating, strict=True)]
        self.layer.zero_grad()
        dy = tuple(None if d is None else d.copy() for d in self.dy)
        found = _as_tuple(self.layer.backward(dy if isinstance(outputs, tuple) else dy[0], saved))
        if any(
            not np.array_equal(d, mine)
            for d, mine in zip(dy, self.dy, strict=True)
            if d is not None and mine is not None
        ):
            raise GradientError(f"{self.name}: backward wrote dy")
        inputs = [g for g in found if g is not None]
        if len(inputs) != len(floating):
            raise GradientError(
                f"{self.name}: backward returned {len(inputs)} gradients for {len(floating)} floating inputs"
            )
        gradients = inputs + [p.grad.copy() for _, p in self.parameters]
        for name, gradient, value in zip(self.names, gradients, self.values, strict=True):
            if gradient.shape != value.shape:
                raise GradientError(
                    f"{self.name}: the gradient of {name} has shape {gradient.shape}, not {value.shape}"
                )
        return gradients

    def _scaled(self, gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
        """A loss gives d loss / dx; with losses per row (no reduction), each row's gradient belongs to its own dy."""
        dy = np.asarray(self.dy[0])
        return gradient * dy.reshape(dy.shape + (1,) * (x.ndim - dy.ndim))

    def _difference(self, directions: list[np.ndarray], step: float) -> float:
        values = {}
        for h in (1, -1, 2, -2):
            for value, u in zip(self.values, directions, strict=True):
                value += h * step * u
            values[h] = self._objective()
            for value, u in zip(self.values, directions, strict=True):
                value -= h * step * u
        return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)

    def _error(self, gradients: list[np.ndarray], directions: list[np.ndarray], tolerance: float) -> float:
        products = [g * u for g, u in zip(gradients, directions, strict=True) if u.any()]  # NaN * 0 would accuse all
        analytic = float(sum(p.sum() for p in products))
        # The sum may nearly cancel by chance: then its terms, not the sum, say what a large error is.
        typical = float(np.sqrt(sum((p * p).sum() for p in products)))
        error = np.inf
        for step in STEPS:
            numeric = self._difference(directions, step)
            scale = max(abs(numeric), typical)
            error = min(error, abs(analytic - numeric) / (scale if scale > 1e-9 else 1.0))
            if error <= tolerance:
                break
        return error

    def _where(self, gradients: list[np.ndarray], directions: list[np.ndarray], tolerance: float, error: float) -> str:
        """The message: the gradients that are wrong on their own, and the worst element of the first of them."""
        lines = [f"{self.name}: backward is not the derivative of forward (relative error {error:.2e})"]
        for i, name in enumerate(self.names):
            alone = [u if i == j else np.zeros_like(u) for j, u in enumerate(directions)]
            if not (wrong := self._error(gradients, alone, tolerance)) <= tolerance:
                element, analytic, numeric = self._worst_element(i, gradients[i])
                lines.append(
                    f"  {name}: relative error {wrong:.2e}; worst element {element}: "
                    f"backward says {analytic:.9g}, finite differences {numeric:.9g}"
                )
        return "\n".join(lines)

    def _worst_element(self, i: int, gradient: np.ndarray, most: int = 512) -> tuple[tuple[int, ...], float, float]:
        """Among up to `most` elements of gradient i, the one that is furthest from its finite difference."""
        chosen = np.arange(gradient.size)
        if gradient.size > most:
            chosen = self.rng.choice(gradient.size, most, replace=False)
        worst: tuple[tuple[int, ...], float, float] = ((), 0.0, 0.0)
        for flat_index in chosen:
            one = [np.zeros_like(v) for v in self.values]
            index = np.unravel_index(flat_index, gradient.shape)
            one[i][index] = 1
            analytic, numeric = float(gradient[index]), self._difference(one, STEPS[-1])
            if np.isnan(analytic) or np.isnan(numeric):
                return tuple(int(k) for k in index), analytic, numeric
            if not abs(analytic - numeric) <= abs(worst[1] - worst[2]):
                worst = (tuple(int(k) for k in index), analytic, numeric)
        return worst


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)


def _is_floating_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.floating) and is_floating(x.dtype)


def _on_cpu(x: Any) -> Any:
    return to_numpy(x) if is_array(x) else x


def _float64(x: Any) -> Any:
    return np.array(x, np.float64) if _is_floating_array(x) else x
