"""`Plateau`: a schedule that lowers the rate when a metric no longer improves."""

import math
from typing import Any

import numpy as np

from gpulayers.optim.schedule import Schedule


class Plateau:
    """The factor is multiplied by `factor` when more than `patience` metrics in a row were no better than the best.

    >>> plateau = Plateau(patience=3)
    >>> optimizer = AdamW(model, lr=1e-3, schedule=plateau)
    >>> plateau.update(validation_loss)     # after each measurement, not after each step

    Better is below best (1 - threshold) for mode "min" and threshold_mode "rel", below best - threshold for "abs"; for
    "max" above best (1 + threshold) and best + threshold. cooldown: measurements after a fall that are not counted.
    min_factor: it never falls below. eps: smaller falls of the factor are left out. warmup: as of every schedule,
    linear over so many updates.
    Names and defaults are those of PyTorch's ReduceLROnPlateau, min_factor being min_lr / lr and eps its eps / lr.

    It is no function of k, so the optimizer asks before every step, which on a GPU waits for the device. Its state, an
    array of four numbers, is in the optimizer's `state_dict`. A metric that is NaN is no better.
    """

    def __init__(
        self,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
        warmup: int = 0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"Plateau: mode is min or max, threshold_mode rel or abs, got {mode!r}, {threshold_mode!r}"
            )
        if not 0 < factor < 1:
            raise ValueError(f"Plateau: factor must be above 0 and below 1, got {factor}")
        if not 0 <= min_factor <= 1:
            raise ValueError(f"Plateau: min_factor must be in 0..1, a part of the full rate, got {min_factor}")
        for name, value in {"patience": patience, "threshold": threshold, "cooldown": cooldown, "eps": eps}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"Plateau: {name} must be 0 or more, and finite, got {value}")
        self.mode, self.factor, self.patience, self.threshold = mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.min_factor, self.eps = threshold_mode, cooldown, min_factor, eps
        self._rise = Schedule("plateau", max(1, warmup), warmup, lambda k: 1.0)
        worst = math.inf if mode == "min" else -math.inf
        self.state = np.array([1.0, worst, 0.0, 0.0])  # factor, best, measurements without progress, cooldown left

    def __call__(self, k: int) -> float:
        return self._rise(k) * float(self.state[0])

    def update(self, metric: Any) -> None:
        """Take note of a measurement."""
        now, best, bad, rest = float(metric), *self.state[1:].tolist()
        if self._is_better(now, best):
            best, bad = now, 0
        else:
            bad += 1
        if rest > 0:
            rest, bad = rest - 1, 0
        factor = float(self.state[0])
        if bad > self.patience:
            lower, rest, bad = max(factor * self.factor, self.min_factor), self.cooldown, 0
            factor = lower if factor - lower > self.eps else factor
        self.state[:] = factor, best, bad, rest

    def _is_better(self, now: float, best: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if math.isinf(best):
            return sign * now < sign * best
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return now < best - margin if sign > 0 else now > best + margin
