"""`RuleOptimizer`: an optimizer whose whole update is one op of `ops/adam_rules.py` or `ops/gradient_rules.py`."""

from typing import Any, ClassVar

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.optim.check import check_beta, check_eps, check_not_negative
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class RuleOptimizer(Optimizer):
    """rule: the op. slots: the names in a checkpoint of its state m, v and w, None for what it goes without.

    A subclass sets `numbers`, the rule's own, before it calls `__init__`.
    """

    rule: ClassVar[Op]
    slots: tuple[str | None, str | None, str | None]
    decoupled: bool = False
    numbers: tuple[float, ...]

    def __init__(self, model: Layer | Flat, lr: float, **options: Any) -> None:
        self.moments = tuple(name for name in self.slots if name)
        super().__init__(model, lr, **options)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        self.rule(
            p,
            *self._state(at),
            grad[at],
            self._control,
            settings.lr_scale,
            self.numbers,
            settings.weight_decay,
            self.decoupled,
            settings.l1,
            copy,
        )

    def _state(self, at: slice) -> tuple[Array, ...]:
        return tuple(None if name is None else self._moments[name][at] for name in self.slots)

    def _decay_is_penalty(self) -> bool:
        return not self.decoupled

    def _check(self, **numbers: float) -> None:
        """Each must be 0 or more, and finite; `eps` above 0 in float32, what is called a beta below 1."""
        for name, value in numbers.items():
            who = f"{type(self).__name__}: {name}"
            if name in ("beta1", "beta2", "alpha", "rho"):
                check_beta({"beta1": f"{who[:-5]}betas[0]", "beta2": f"{who[:-5]}betas[1]"}.get(name, who), value)
            elif name == "eps":
                check_eps(who, value)
            else:
                check_not_negative(who, value)

    def _betas(self, betas: tuple[float, float]) -> tuple[float, float]:
        if len(betas) != 2:
            raise ValueError(f"{type(self).__name__}: betas must be two numbers, got {betas}")
        self._check(beta1=betas[0], beta2=betas[1])
        return betas[0], betas[1]
