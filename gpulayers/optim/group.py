"""Parameter groups: which settings hold for which parameter, and the stretches of flat memory that share them."""

import fnmatch
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpulayers.optim.check import check_not_negative
from gpulayers.parameter import Parameter, Segment


class Group:
    """Settings of its own for some parameters.

    match: a pattern for the parameter's dotted name with * and ? ("blocks.0.*", "*.bias"), or a function
    (name, parameter) -> bool. lr: a learning rate of its own, or lr_scale, which multiplies the optimizer's; a schedule
    multiplies both. weight_decay, l1: None keeps the optimizer's rule, which decays matrices and tables only; a number
    holds for all parameters that match, vectors too. maximize: up the gradient instead of down, or the reverse.
    rule: whatever else the optimizer's rule takes (betas, eps, momentum ...); what is not given is the optimizer's.

    >>> AdamW(model, lr=1e-3, groups=[Group("head.*", lr=1e-2, betas=(0.8, 0.99)), Group("*.bias", weight_decay=0.01)])
    """

    def __init__(
        self,
        match: str | Callable[[str, Parameter], bool],
        lr_scale: float = 1.0,
        weight_decay: float | None = None,
        l1: float | None = None,
        *,
        lr: float | None = None,
        maximize: bool | None = None,
        **rule: Any,
    ) -> None:
        self.match, self.lr_scale, self.weight_decay, self.l1 = match, lr_scale, weight_decay, l1
        self.lr, self.maximize, self.rule = lr, maximize, rule
        for name in ("lr_scale", "weight_decay", "l1", "lr"):
            if (value := getattr(self, name)) is not None:
                check_not_negative(f"{self}: {name}", value)
        if lr is not None and lr_scale != 1:
            raise ValueError(f"{self}: a group has lr or lr_scale, got lr={lr} and lr_scale={lr_scale}")

    def __repr__(self) -> str:
        return f"Group({self.match!r})"

    def matches(self, name: str, parameter: Parameter) -> bool:
        if isinstance(self.match, str):
            return fnmatch.fnmatchcase(name, self.match)
        return self.match(name, parameter)


class Settings(NamedTuple):
    """What a group may change, for one parameter.

    numbers: the rule's own. control: the row of the control array. kind: of optimizers that have two rules.
    """

    lr_scale: float
    weight_decay: float
    l1: float
    numbers: tuple[float, ...] = ()
    decoupled: bool = False
    control: int = 0
    kind: str = ""


def decay_of(segment: Segment, own: Group | None, weight_decay: float, l1: float) -> tuple[float, float]:
    """(weight_decay, l1) of a parameter: matrices and tables are decayed, vectors are not, unless a group says so."""
    if segment.parameter.data.ndim < 2:
        weight_decay = l1 = 0.0
    if own is None:
        return weight_decay, l1
    return weight_decay if own.weight_decay is None else own.weight_decay, l1 if own.l1 is None else own.l1


class Stretch(NamedTuple):
    """Elements start to stop of the flat buffer, all with the same settings."""

    start: int
    stop: int
    settings: Settings


def stretches(segments: Iterable[tuple[Segment, Settings]]) -> list[Stretch]:
    """Neighbours with the same settings become one stretch; frozen and empty parameters are passed over.

    The padding between two neighbours lies inside the stretch: it is 0 in every buffer and every update keeps it 0.
    """
    found: list[Stretch] = []
    joined = False  # whether the segment before belongs to the last stretch
    for segment, settings in segments:
        if not segment.parameter.trainable:
            joined = False
        elif segment.stop > segment.start:
            if joined and found[-1].settings == settings:
                found[-1] = found[-1]._replace(stop=segment.stop)
            else:
                found.append(Stretch(segment.start, segment.stop, settings))
            joined = True
    return found


def pieces(found: list[Stretch], size: int) -> list[Stretch]:
    """The stretches, cut so that none is longer than `size` elements."""
    return [
        Stretch(start, min(start + size, stop), settings)
        for first, stop, settings in found
        for start in range(first, stop, size)
    ]
