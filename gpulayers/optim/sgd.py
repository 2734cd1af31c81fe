"""Stochastic gradient descent."""

from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.sgd import sgd
from gpulayers.ops.update import Table, launch_model
from gpulayers.optim.check import any_group, check_not_negative
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class SGD(Optimizer):
    """p = p - lr g, or with momentum m = momentum m + (1 - dampening) g, p = p - lr m; with nesterov
    p = p - lr (g + momentum m).

    g is the mean gradient, clipped, plus weight_decay p + l1 sign(p) for matrices and tables. The first m is g whatever
    the dampening. A group may have a momentum, nesterov and dampening of its own.
    The other arguments are `Optimizer`'s. Source: see `gpulayers/ops/sgd.py`.
    """

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule = {"momentum": momentum, "nesterov": nesterov, "dampening": dampening}
        self.moments = ("m",) if any_group(options, "momentum", momentum) else ()
        super().__init__(model, lr, **options)

    def _numbers(self, momentum: float, nesterov: bool, dampening: float) -> tuple[float, ...]:
        check_not_negative("SGD: momentum", momentum)
        check_not_negative("SGD: dampening", dampening)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov needs a momentum above 0")
        if nesterov and dampening:
            raise ValueError("SGD: nesterov goes without dampening")
        return momentum, nesterov, dampening if momentum else 0.0  # beside groups with momentum, m is the gradient

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        momentum, nesterov, dampening = settings.numbers
        sgd(
            p,
            self._moments["m"][at] if self.moments else None,
            grad[at],
            self._controls[settings.control],
            settings.lr_scale,
            momentum,
            bool(nesterov),
            settings.weight_decay,
            settings.l1,
            copy,
            dampening=dampening,
        )

    def _update_all(self, kind: str, table: Table, grad: Array) -> None:
        p, copy = self._weights(slice(None))
        launch_model("sgd", (p, self._moments.get("m")), copy, grad, self._controls, table)
