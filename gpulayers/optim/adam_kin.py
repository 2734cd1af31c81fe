"""NAdam, RAdam, Adamax and Lion: Adam's kin. The formulas stand in `gpulayers/ops/adam_rules.py`.

Each takes the arguments of `Optimizer` besides; names and defaults are PyTorch's, Lion's its paper's.
"""

from typing import Any

from gpulayers.layers.layer import Layer
from gpulayers.ops import adam_rules
from gpulayers.optim.rule import RuleOptimizer
from gpulayers.parameter import Flat


class NAdam(RuleOptimizer):
    """Adam with Nesterov's momentum: the step is taken along the moment as the next gradient will find it.

    mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), and
    p = p - lr [(1 - mu_t) / (1 - mu_1 ... mu_t) g + mu_(t+1) / (1 - mu_1 ... mu_(t+1)) m] / (sqrt(v_hat) + eps)

    decoupled_weight_decay: decay apart from the gradient, as AdamW. Source: Dozat, 2016.
    """

    op = adam_rules.nadam
    slots = ("m", "v", None)
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **options: Any,
    ) -> None:
        self.rule = {"betas": betas, "eps": eps, "momentum_decay": momentum_decay}
        self.rule["decoupled_weight_decay"] = decoupled_weight_decay
        self.betas, self.momentum_decay, self.decoupled = betas, momentum_decay, decoupled_weight_decay
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(
        self, betas: tuple[float, float], eps: float, momentum_decay: float, **flag: bool
    ) -> tuple[float, ...]:
        self._check(betas=betas, eps=eps, momentum_decay=momentum_decay)
        return (*betas, eps)


class RAdam(RuleOptimizer):
    """Adam that goes without its second moment, as momentum does, while that rests on too few gradients.

    L = 2 / (1 - beta2) - 1,  l = L - 2 t beta2^t / (1 - beta2^t).  Where l > 5:
    p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps),  r = sqrt((l - 4) (l - 2) L / ((L - 4) (L - 2) l));
    else p = p - lr m_hat.

    decoupled_weight_decay: decay apart from the gradient, as AdamW. Source: Liu et al., 2020, algorithm 2.
    """

    op = adam_rules.radam
    slots = ("m", "v", None)
    squares = True
    rectify = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        **options: Any,
    ) -> None:
        self.rule = {"betas": betas, "eps": eps, "decoupled_weight_decay": decoupled_weight_decay}
        self.betas, self.decoupled = betas, decoupled_weight_decay
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, betas: tuple[float, float], eps: float, **flag: bool) -> tuple[float, ...]:
        self._check(betas=betas, eps=eps)
        return (*betas, eps)


class Adamax(RuleOptimizer):
    """Adam with the largest gradient instead of the mean square: v = max(beta2 v, |g| + eps), p = p - lr m_hat / v.

    Source: Kingma and Ba, 2015, algorithm 2.
    """

    op = adam_rules.adamax
    slots = ("m", "v", None)

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule, self.betas = {"betas": betas, "eps": eps}, betas
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, betas: tuple[float, float], eps: float) -> tuple[float, ...]:
        self._check(betas=betas, eps=eps)
        return (*betas, eps)


class Lion(RuleOptimizer):
    """The sign of an interpolated moment: p = p - lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), then
    m = beta2 m + (1 - beta2) g.

    One moment instead of Adam's two. Every element moves by lr, so lr is 3 to 10 times smaller than Adam's and
    weight_decay as much larger. Source: Chen et al., 2023, algorithm 2 and section 5.
    """

    op = adam_rules.lion
    slots = ("m", None, None)
    decoupled = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule, self.betas = {"betas": betas}, betas
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, betas: tuple[float, float]) -> tuple[float, ...]:
        self._check(betas=betas)
        return tuple(betas)
