"""LAMB: Adam's direction, with a step as long as the parameter is large. For very large batches."""

from typing import Any

from gpulayers.backend import Array, zeros
from gpulayers.layers.layer import Layer
from gpulayers.ops.adam_rules import lamb
from gpulayers.ops.move import move
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.optim.group import Settings
from gpulayers.optim.rule import RuleOptimizer
from gpulayers.parameter import Flat


class LAMB(RuleOptimizer):
    """u = m_hat / (sqrt(v_hat) + eps) + weight_decay p,  p = p - lr |p| / |u| u, the norms of each parameter by itself;
    where one of them is 0, p = p - lr u.

    On a GPU a step is one launch for all directions, then five for each parameter: two norms of two launches each, and
    the step. Source: You et al., 2020, algorithm 2.
    """

    op = lamb
    slots = ("m", "v", None)
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        **options: Any,
    ) -> None:
        self.rule, self.betas = {"betas": betas, "eps": eps}, betas
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, betas: tuple[float, float], eps: float) -> tuple[float, ...]:
        self._check(betas=betas, eps=eps)
        return (*betas, eps)

    def _for_op(self, settings: Settings) -> Settings:
        """The direction has the decay in it, as a number of the rule."""
        return settings._replace(numbers=(*settings.numbers, settings.weight_decay), weight_decay=0.0)

    def _make_arrays(self) -> None:
        super()._make_arrays()
        self._direction = zeros(self.flat.size, self._control.dtype, like=self.flat.data)

    def _state(self, at: slice) -> tuple[Array, ...]:
        return self._moments["m"][at], self._moments["v"][at], self._direction[at]

    def _apply(self, grad: Array) -> None:
        super()._apply(grad)
        for (_, parameter, start, stop), settings in zip(self.flat.segments, self._settings, strict=True):
            if parameter.trainable and stop > start:
                p, copy = self._weights(slice(start, stop))
                u = self._direction[start:stop]
                totals = sum_of_squares(p), sum_of_squares(u)
                move(p, u, self._controls[settings.control], settings.lr_scale, 1.0, 0.0, *totals, copy)

    def _decay_is_penalty(self) -> bool:
        return False
