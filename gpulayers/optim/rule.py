"""`RuleOptimizer`: an optimizer whose whole update is one op of `ops/adam_rules.py` or `ops/gradient_rules.py`."""

from typing import Any, ClassVar

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.ops.update import Table, launch_model
from gpulayers.ops.update_rules import RULES
from gpulayers.optim.check import check_beta, check_betas, check_eps, check_not_negative
from gpulayers.optim.group import Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat


class RuleOptimizer(Optimizer):
    """op: of the rule. slots: the names in a checkpoint of its state m, v and w, None for what it goes without.

    A subclass sets `rule`, what may differ from group to group, before it calls `__init__`.
    """

    op: ClassVar[Op]
    slots: tuple[str | None, str | None, str | None]

    def __init__(self, model: Layer | Flat, lr: float, **options: Any) -> None:
        self.moments = tuple(name for name in self.slots if name)
        super().__init__(model, lr, **options)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        p, copy = self._weights(at)
        settings = self._for_op(settings)
        self.op(
            p,
            *self._state(at),
            grad[at],
            self._controls[settings.control],
            settings.lr_scale,
            settings.numbers,
            settings.weight_decay,
            settings.decoupled,
            settings.l1,
            copy,
        )

    def _update_all(self, kind: str, table: Table, grad: Array) -> None:
        everything = slice(None)
        p, copy = self._weights(everything)
        number = np.int32(RULES[self.op.name].number)
        launch_model("update_rules", (p, *self._state(everything)), copy, grad, self._controls, table, number)

    def _scalars(self, settings: Settings) -> tuple[float, ...]:
        return RULES[self.op.name].scalars(*settings.numbers)

    def _state(self, at: slice) -> tuple[Array, ...]:
        return tuple(None if name is None else self._moments[name][at] for name in self.slots)

    def _check(self, **numbers: Any) -> None:
        """Each must be 0 or more, and finite; `eps` above 0 in float32, alpha and rho below 1, betas two such."""
        for name, value in numbers.items():
            who = f"{type(self).__name__}: {name}"
            if name == "betas":
                check_betas(who, value)
            elif name in ("alpha", "rho"):
                check_beta(who, value)
            elif name == "eps":
                check_eps(who, value)
            else:
                check_not_negative(who, value)
