"""Learning rate schedules: pure functions of the number of updates applied so far.

    schedule(k) -> the factor by which the learning rate of update k is multiplied, k = 0, 1, 2 ...

With w warm-up updates every schedule rises linearly first, factor (k + 1) / w while k < w, so that update w - 1 is the
first at the full rate and none is wasted at 0. Then, with p = (k - w) / (steps - w), the part of the way to the end:

    constant              1
    linear                1 - (1 - final) p
    cosine                final + (1 - final) (1 + cos(pi p)) / 2
    step                  gamma^floor((k - w) / step_size)
    inverse_square_root   sqrt(w / (k + 1)), with w = 1 where there is no warm-up

From k = steps on the factor stays what it is at k = steps.

Sources: cosine: Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, 2017, equation 5, without
restarts; inverse_square_root: Vaswani et al., Attention is all you need, 2017, equation 3, divided by its peak.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

MOST_STEPS = 10_000_000  # the optimizer keeps a table of the rates, because a step on a GPU cannot ask the host


@dataclass(frozen=True)
class Schedule:
    """`schedule(k)` is the factor of update k.

    steps: from there on it stays the same. warmup: updates of the rise. decay: the factor for warmup <= k <= steps.
    """

    name: str
    steps: int
    warmup: int
    decay: Callable[[int], float]

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"{self.name} schedule: steps must be at least 1, got {self.steps}")
        if self.steps > MOST_STEPS:
            raise ValueError(f"{self.name} schedule: steps must be at most {MOST_STEPS}, got {self.steps}")
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"{self.name} schedule: warmup must be in 0..steps = {self.steps}, got {self.warmup}")

    def __call__(self, k: int) -> float:
        k = min(k, self.steps)
        return (k + 1) / self.warmup if k < self.warmup else self.decay(k)

    def progress(self, k: int) -> float:
        """0 at the end of the warm-up, 1 at `steps`."""
        return (k - self.warmup) / max(1, self.steps - self.warmup)


def constant(steps: int = 1, warmup: int = 0) -> Schedule:
    """The full rate after the warm-up; `steps` may be any number."""
    return Schedule("constant", max(1, warmup), warmup, lambda k: 1.0)


def linear(steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A straight line from 1 to `final`."""
    _check_final("linear", final)
    schedule = Schedule("linear", steps, warmup, lambda k: 1 - (1 - final) * schedule.progress(k))
    return schedule


def cosine(steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 to `final`."""
    _check_final("cosine", final)

    def decay(k: int) -> float:
        return final + (1 - final) * (1 + math.cos(math.pi * schedule.progress(k))) / 2

    schedule = Schedule("cosine", steps, warmup, decay)
    return schedule


def step(steps: int, warmup: int = 0, step_size: int | None = None, gamma: float = 0.1) -> Schedule:
    """Multiplied by `gamma` every `step_size` updates, by default at each third of the way after the warm-up."""
    size = max(1, -(-(steps - warmup) // 3)) if step_size is None else step_size
    if size < 1:
        raise ValueError(f"step schedule: step_size must be at least 1, got {step_size}")
    if not 0 < gamma <= 1:
        raise ValueError(f"step schedule: gamma must be above 0 and at most 1, got {gamma}")
    return Schedule("step", steps, warmup, lambda k: gamma ** ((k - warmup) // size))


def inverse_square_root(steps: int, warmup: int = 0) -> Schedule:
    """Falls as 1 / sqrt(k + 1) from 1 at the end of the warm-up."""
    return Schedule("inverse_square_root", steps, warmup, lambda k: math.sqrt(max(1, warmup) / (k + 1)))


def _check_final(name: str, final: float) -> None:
    if not 0 <= final <= 1:
        raise ValueError(f"{name} schedule: final must be in 0..1, a part of the full rate, got {final}")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "step": step,
    "inverse_square_root": inverse_square_root,
}


def make_schedule(name: str, steps: int, warmup: int = 0, **options: float) -> Schedule:
    """The schedule called `name`, with its own options. Raises ValueError for a name or option that there is not."""
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; there are {', '.join(SCHEDULES)}")
    known = inspect.signature(SCHEDULES[name]).parameters
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"the {name} schedule has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    return SCHEDULES[name](steps, warmup, **options)
