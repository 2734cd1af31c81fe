"""Adafactor: Adam's second moment at the memory of two vectors a matrix, and no first moment."""

from typing import Any

import numpy as np

from gpulayers.backend import Array, zeros
from gpulayers.layers.layer import Layer
from gpulayers.ops.adafactor import adafactor
from gpulayers.optim.check import check_not_negative
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class Adafactor(Optimizer):
    """The formulas stand in `gpulayers/ops/adafactor.py`; names and defaults are PyTorch's.

    lr: the largest rate; update t takes min(lr, 1 / sqrt(t)) times the size of the parameter itself. eps: the first
    guards the second moment (None: the machine epsilon of float32), the second is the least size of a parameter.
    d: how large an update may be, as a root mean square. State: `row.<name>` and `col.<name>` of a parameter with two
    axes or more, `v.<name>` of a vector. On a GPU about thirty array calls a parameter, and none waits.
    Source: Shazeer and Stern, 2018.
    """

    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule = {"beta2_decay": beta2_decay, "eps": eps, "d": d}
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, beta2_decay: float, eps: tuple[float | None, float], d: float) -> tuple[float, ...]:
        if not beta2_decay <= 0:
            raise ValueError(f"Adafactor: beta2_decay must be 0 or less, got {beta2_decay}")
        if not d >= 1:
            raise ValueError(f"Adafactor: d must be at least 1, got {d}")
        if len(eps) != 2 or (eps[0] is not None and not eps[0] > 0):
            raise ValueError(f"Adafactor: eps must be two numbers, the first above 0 or None, got {eps}")
        check_not_negative("Adafactor: eps[1]", eps[1])
        return beta2_decay, 0.0 if eps[0] is None else eps[0], eps[1], d

    def _make_arrays(self) -> None:
        super()._make_arrays()
        dtype, data = self._control.dtype, self.flat.data
        self._factors: dict[str, tuple[Array, Array, Array]] = {}  # row, col, v
        for name, parameter, _, _ in self.flat.segments:
            shape = parameter.shape
            if len(shape) < 2:
                self._factors[name] = None, None, zeros(shape, dtype, like=data)
            else:
                row, col = shape[:-1], (*shape[:-2], shape[-1])
                self._factors[name] = zeros(row, dtype, like=data), zeros(col, dtype, like=data), None

    def _apply(self, grad: Array) -> None:
        epsilon = float(np.finfo(self._control.dtype).eps)
        for (name, parameter, start, stop), settings in zip(self.flat.segments, self._settings, strict=True):
            if not parameter.trainable or stop == start:
                continue
            views = (a if a is None else a.reshape(parameter.shape) for a in self._weights(slice(start, stop)))
            p, copy = views
            g = grad[start:stop].reshape(parameter.shape)
            beta2_decay, eps1, eps2, d = settings.numbers
            numbers = settings.lr_scale, beta2_decay, eps1 or epsilon, eps2, d
            control = self._controls[settings.control]
            adafactor(p, *self._factors[name], g, control, *numbers, settings.weight_decay, settings.l1, copy)

    def _decay_is_penalty(self) -> bool:
        return False

    def _named_state(self) -> dict[str, Array]:
        return super()._named_state() | {
            f"{kind}.{name}": array
            for name, factors in self._factors.items()
            for kind, array in zip(("row", "col", "v"), factors, strict=True)
            if array is not None
        }
