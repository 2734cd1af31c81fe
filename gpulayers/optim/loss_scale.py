"""Dynamic loss scaling, for float16: gradients of 1e-8 would be 0, so the whole backward pass runs on scale * loss.

The scale is as large as overflow allows: halved when a gradient is not finite, and that step is skipped, doubled after
a long time without. It lives on the device: `update_control` divides it out before it measures and clips, decides, and
adapts it, and no step waits for the host. bfloat16 has the range of float32 and needs none of this.

Source: Micikevicius et al., Mixed precision training, 2018, section 3.2.
"""

from dataclasses import dataclass
from typing import Self

from gpulayers.optim.check import check_not_negative


class LossScaleError(FloatingPointError):
    """Gradients overflow at the lowest scale, step after step: the model diverges, and no scale can mend that."""


@dataclass(frozen=True)
class LossScale:
    """How the scale goes.

    initial: the first, made for a loss that is a mean; one that is a sum over n targets has gradients n times as large:
    see `for_sum`. growth_interval: applied steps in a row until it is doubled. floor: it is never lower. patience:
    so many skipped steps in a row at the floor are an error, `LossScaleError`, at the next look at the optimizer.

    >>> optimizer = AdamW(model, loss_scale=LossScale())
    >>> loss, dlogits = cross_entropy(logits, targets, scale=optimizer.scale)

    The default: an element of the mean loss's dlogits is at most 1, and so is a sum of them over all targets, the
    gradient of an output bias. 2^15 is the largest power of two that float16, up to 65504, holds them with; the
    probabilities, 1 / V at first, keep their digits down to 6e-5 / scale.
    """

    initial: float = 32768.0
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

    @classmethod
    def for_sum(cls, count: int) -> Self:
        """For gradients of a loss that is summed over `count` targets, which `optimizer.step(count)` divides by.

        >>> optimizer = AdamW(model, loss_scale=LossScale.for_sum(8 * 1024))
        >>> loss, dlogits = cross_entropy(logits, targets, reduction="sum", scale=optimizer.scale)
        """
        if count < 1:
            raise ValueError(f"LossScale.for_sum: count must be at least 1, got {count}")
        power = 1 << (count - 1).bit_length()
        return cls(cls.initial / power, floor=cls.floor / power)
