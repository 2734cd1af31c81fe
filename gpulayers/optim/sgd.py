"""Stochastic gradient descent."""

from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.sgd import sgd
from gpulayers.optim.check import check_not_negative
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class SGD(Optimizer):
    """p = p - lr g, or with momentum m = momentum m + g, p = p - lr m; with nesterov p = p - lr (g + momentum m).

    g is the mean gradient, clipped, plus weight_decay p + l1 sign(p) for matrices and tables.
    The other arguments are `Optimizer`'s. Source: see `gpulayers/ops/sgd.py`.
    """

    def __init__(
        self, model: Layer | Flat, lr: float, momentum: float = 0.0, nesterov: bool = False, **options: Any
    ) -> None:
        check_not_negative("SGD: momentum", momentum)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov needs a momentum above 0")
        self.momentum, self.nesterov = momentum, nesterov
        self.moments = ("m",) if momentum else ()
        super().__init__(model, lr, **options)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        sgd(
            p,
            self._moments["m"][at] if self.momentum else None,
            grad[at],
            self._control,
            settings.lr_scale,
            self.momentum,
            self.nesterov,
            settings.weight_decay,
            settings.l1,
            copy,
        )
