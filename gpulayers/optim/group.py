"""Parameter groups: which settings hold for which parameter, and the stretches of flat memory that share them."""

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpulayers.optim.check import check_not_negative
from gpulayers.parameter import Parameter, Segment


@dataclass(frozen=True)
class Group:
    """Settings of its own for some parameters.

    match: a pattern for the parameter's dotted name with * and ? ("blocks.0.*", "*.bias"), or a function
    (name, parameter) -> bool. lr_scale multiplies the learning rate. weight_decay, l1: None keeps the optimizer's
    rule, which decays matrices and tables only; a number holds for all parameters that match, vectors too.

    >>> AdamW(model, lr=1e-3, groups=[Group("head.*", lr_scale=10), Group("*.bias", weight_decay=0.01)])
    """

    match: str | Callable[[str, Parameter], bool]
    lr_scale: float = 1.0
    weight_decay: float | None = None
    l1: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr_scale", "weight_decay", "l1"):
            if (value := getattr(self, name)) is not None:
                check_not_negative(f"Group({self.match!r}): {name}", value)

    def matches(self, name: str, parameter: Parameter) -> bool:
        if isinstance(self.match, str):
            return fnmatch.fnmatchcase(name, self.match)
        return self.match(name, parameter)


class Settings(NamedTuple):
    """What a group may change, for one parameter."""

    lr_scale: float
    weight_decay: float
    l1: float
    rule: str = ""  # of optimizers that have two


def settings_of(segment: Segment, weight_decay: float, l1: float, groups: tuple[Group, ...]) -> Settings:
    """The first group that matches decides; without one, matrices and tables are decayed, vectors are not."""
    if segment.parameter.data.ndim < 2:
        weight_decay = l1 = 0.0
    for group in groups:
        if group.matches(segment.name, segment.parameter):
            return Settings(
                group.lr_scale,
                weight_decay if group.weight_decay is None else group.weight_decay,
                l1 if group.l1 is None else group.l1,
            )
    return Settings(1.0, weight_decay, l1)


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
