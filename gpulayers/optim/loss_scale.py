"""Dynamic loss scaling, for float16: gradients of 1e-8 would be 0, so the whole backward pass runs on scale * loss.

The scale is as large as overflow allows: halved when a gradient is not finite, and that step is skipped, doubled after
a long time without. It lives on the device: `update_control` divides it out before it measures and clips, decides, and
adapts it, and no step waits for the host. bfloat16 has the range of float32 and needs none of this.

Source: Micikevicius et al., Mixed precision training, 2018, section 3.2.
"""

from dataclasses import dataclass

from gpulayers.optim.check import check_not_negative


class LossScaleError(FloatingPointError):
    """Gradients overflow at the lowest scale, step after step: the model diverges, and no scale can mend that."""


@dataclass(frozen=True)
class LossScale:
    """How the scale goes.

    initial: the first. growth_interval: applied steps in a row until it is doubled. floor: it is never lower. patience:
    so many skipped steps in a row at the floor are an error, `LossScaleError`, at the next look at the optimizer.

    >>> optimizer = AdamW(model, loss_scale=LossScale())
    >>> loss, dlogits = cross_entropy(logits, targets, scale=optimizer.scale)
    """

    initial: float = 65536.0
    growth_interval: int = 2000
    floor: float = 1.0
    patience: int = 3

    def __post_init__(self) -> None:
        for name in ("initial", "floor"):
            check_not_negative(f"LossScale: {name}", getattr(self, name))
        if not 0 < self.floor <= self.initial:
            raise ValueError(
                f"LossScale: floor must be above 0 and at most initial, got {self.floor} and {self.initial}"
            )
        for name in ("growth_interval", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"LossScale: {name} must be at least 1, got {getattr(self, name)}")
