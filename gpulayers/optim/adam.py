"""Adam, and AdamW with decoupled weight decay."""

from typing import Any

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.adam import adam, adam_scalars
from gpulayers.ops.adam_rules import amsgrad
from gpulayers.ops.update import Table, launch_model
from gpulayers.ops.update_rules import RULES
from gpulayers.optim.check import check_betas, check_eps
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class Adam(Optimizer):
    """m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,  p = p - lr m_hat / (sqrt(v_hat) + eps).

    m_hat = m / (1 - beta1^t), v_hat = v / (1 - beta2^t) at update t = 1, 2, ...
    g is the mean gradient, clipped, plus weight_decay p + l1 sign(p) for matrices and tables.
    amsgrad: the largest v so far, v_max, in the place of v (Reddi, Kale and Kumar, 2018), for all groups or none.
    decoupled_weight_decay: decay apart from the gradient, as AdamW. A group may have its own betas, eps and it.
    The other arguments are `Optimizer`'s. Source: Kingma and Ba, 2015, algorithm 1.
    """

    moments = ("m", "v")
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        decoupled_weight_decay: bool = False,
        **options: Any,
    ) -> None:
        self.rule = {"betas": betas, "eps": eps, "decoupled_weight_decay": decoupled_weight_decay}
        self.betas, self.eps, self.amsgrad, self.decoupled = betas, eps, amsgrad, decoupled_weight_decay
        if amsgrad:
            self.moments = ("m", "v", "v_max")
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, betas: tuple[float, float], eps: float, decoupled_weight_decay: bool) -> tuple[float, ...]:
        check_betas(f"{type(self).__name__}: betas", betas)
        check_eps(f"{type(self).__name__}: eps", eps)
        return (*betas, eps)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        state = tuple(self._moments[name][at] for name in self.moments)
        along = grad[at], self._controls[settings.control], settings.lr_scale
        decay = settings.weight_decay, settings.decoupled, settings.l1
        if self.amsgrad:
            amsgrad(p, *state, *along, settings.numbers, *decay, copy)
        else:
            adam(p, *state, *along, *settings.numbers, *decay, copy)

    def _update_all(self, kind: str, table: Table, grad: Array) -> None:
        p, copy = self._weights(slice(None))
        state = tuple(self._moments.values())
        if self.amsgrad:
            number = np.int32(RULES["amsgrad"].number)
            launch_model("update_rules", (p, *state), copy, grad, self._controls, table, number)
        else:
            launch_model("adam", (p, *state), copy, grad, self._controls, table)

    def _scalars(self, settings: Settings) -> tuple[float, ...]:
        return adam_scalars(*settings.numbers)


class AdamW(Adam):
    """Adam with decoupled weight decay: p = p - lr weight_decay p, apart from the gradient and its moments.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 2, with the decay multiplied
    by the whole learning rate, as PyTorch does.
    """

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=True, **options)
