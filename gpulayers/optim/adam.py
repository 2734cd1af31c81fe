"""Adam, and AdamW with decoupled weight decay."""

from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.adam import adam
from gpulayers.ops.adam_rules import amsgrad
from gpulayers.optim.check import check_beta, check_eps
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class Adam(Optimizer):
    """m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,  p = p - lr m_hat / (sqrt(v_hat) + eps).

    m_hat = m / (1 - beta1^t), v_hat = v / (1 - beta2^t) at update t = 1, 2, ...
    g is the mean gradient, clipped, plus weight_decay p + l1 sign(p) for matrices and tables.
    amsgrad: the largest v so far, v_max, in the place of v (Reddi, Kale and Kumar, 2018).
    The other arguments are `Optimizer`'s. Source: Kingma and Ba, 2015, algorithm 1.
    """

    moments = ("m", "v")
    squares = True
    decoupled = False

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        if len(betas) != 2:
            raise ValueError(f"{type(self).__name__}: betas must be two numbers, got {betas}")
        for i, beta in enumerate(betas):
            check_beta(f"{type(self).__name__}: betas[{i}]", beta)
        check_eps(f"{type(self).__name__}: eps", eps)
        self.betas, self.eps, self.amsgrad = (betas[0], betas[1]), eps, amsgrad
        if amsgrad:
            self.moments = ("m", "v", "v_max")
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        state = tuple(self._moments[name][at] for name in self.moments)
        along = grad[at], self._control, settings.lr_scale
        decay = settings.weight_decay, self.decoupled, settings.l1
        if self.amsgrad:
            amsgrad(p, *state, *along, (*self.betas, self.eps), *decay, copy)
        else:
            adam(p, *state, *along, *self.betas, self.eps, *decay, copy)

    def _decay_is_penalty(self) -> bool:
        return not self.decoupled


class AdamW(Adam):
    """Adam with decoupled weight decay: p = p - lr weight_decay p, apart from the gradient and its moments.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 2, with the decay multiplied
    by the whole learning rate, as PyTorch does.
    """

    decoupled = True

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
        super().__init__(model, lr, betas, eps, weight_decay, amsgrad, **options)
