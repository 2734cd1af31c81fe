"""Learning rate schedules: pure functions of the number of updates applied so far.

    schedule(k) -> the factor by which the learning rate of update k is multiplied, k = 0, 1, 2 ...

With w warm-up updates every schedule rises linearly first, factor (k + 1) / w while k < w, so that update w - 1 is the
first at the full rate and none is wasted at 0. Then, with j = k - w and p = j / (steps - w), the part of the way:

    constant              1
    linear                1 - (1 - final) p
    polynomial            final + (1 - final) (1 - p)^power
    exponential           gamma^j
    step                  gamma^floor(j / step_size)
    multi_step            gamma^(number of milestones <= j)
    inverse_square_root   sqrt(w / (k + 1)), with w = 1 where there is no warm-up
    cosine                final + (1 - final) (1 + cos(pi p)) / 2
    cosine_restarts       the same over the way through a period; each period is `multiplier` times the one before
    cyclic                base + (1 - base) x, up in step_size_up updates and down in step_size_down, again and again
    one_cycle             up from 1 / div_factor, down to 1 / (div_factor final_div_factor), a cosine or straight

From k = steps on the factor stays what it is at k = steps. What starts lower than 1 after the warm-up (cyclic,
one_cycle) is risen to, as far as it starts. `sequence` puts schedules behind each other, `chained` multiplies them;
`Plateau` (optim/plateau.py) looks at a metric, and is no function of k.

Sources: cosine, cosine_restarts: Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, 2017,
equation 5; inverse_square_root: Vaswani et al., Attention is all you need, 2017, equation 3, divided by its peak;
cyclic: Smith, Cyclical learning rates for training neural networks, 2017; one_cycle: Smith and Topin,
Super-convergence, 2019. Names and defaults of options are PyTorch's where it has them; a rate that it gives in absolute
terms is a part of lr here.
"""

import inspect
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 10_000_000  # the optimizer keeps a table of the rates, because a step on a GPU cannot ask the host


@dataclass(frozen=True)
class Schedule:
    """`schedule(k)` is the factor of update k.

    steps: from there on it stays the same. warmup: updates of the rise. decay: the factor for warmup <= k <= steps.
    peak: what the warm-up rises to.
    """

    name: str
    steps: int
    warmup: int
    decay: Callable[[int], float]
    peak: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"{self.name} schedule: steps must be at least 1, got {self.steps}")
        if self.steps > MOST_STEPS:
            raise ValueError(f"{self.name} schedule: steps must be at most {MOST_STEPS}, got {self.steps}")
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"{self.name} schedule: warmup must be in 0..steps = {self.steps}, got {self.warmup}")

    def __call__(self, k: int) -> float:
        k = min(k, self.steps)
        return self.peak * (k + 1) / self.warmup if k < self.warmup else self.decay(k)

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
    _check_gamma("step", gamma)
    return Schedule("step", steps, warmup, lambda k: gamma ** ((k - warmup) // size))


def inverse_square_root(steps: int, warmup: int = 0) -> Schedule:
    """Falls as 1 / sqrt(k + 1) from 1 at the end of the warm-up."""
    return Schedule("inverse_square_root", steps, warmup, lambda k: math.sqrt(max(1, warmup) / (k + 1)))


def polynomial(steps: int, warmup: int = 0, power: float = 1.0, final: float = 0.0) -> Schedule:
    """From 1 to `final` along (1 - p)^power; power 1 is the straight line."""
    _check_final("polynomial", final)
    if not 0 < power < math.inf:
        raise ValueError(f"polynomial schedule: power must be above 0, got {power}")
    schedule = Schedule(
        "polynomial", steps, warmup, lambda k: final + (1 - final) * (1 - schedule.progress(k)) ** power
    )
    return schedule


def exponential(steps: int, warmup: int = 0, gamma: float | None = None, final: float = 0.05) -> Schedule:
    """Multiplied by `gamma` after every update; without it, by what leads to `final` at the end."""
    if gamma is None:
        _check_final("exponential", final)
        if final == 0:
            raise ValueError("exponential schedule: final must be above 0, for it never gets there")
    factor = final ** (1 / max(1, steps - warmup)) if gamma is None else gamma
    _check_gamma("exponential", factor)
    return Schedule("exponential", steps, warmup, lambda k: factor ** (k - warmup))


def multi_step(steps: int, warmup: int = 0, milestones: Sequence[int] | None = None, gamma: float = 0.1) -> Schedule:
    """Multiplied by `gamma` at each of the milestones, counted from the end of the warm-up; by default at a half and at
    three quarters of the way."""
    way = max(0, steps - warmup)
    stones = sorted((-(-way // 2), -(-3 * way // 4)) if milestones is None else milestones)
    if stones and stones[0] < 0:
        raise ValueError(f"multi_step schedule: milestones must be 0 or more, got {milestones}")
    _check_gamma("multi_step", gamma)
    return Schedule("multi_step", steps, warmup, lambda k: gamma ** bisect_right(stones, k - warmup))


def cosine_restarts(
    steps: int, warmup: int = 0, period: int | None = None, multiplier: int = 1, final: float = 0.0
) -> Schedule:
    """Half a cosine from 1 to `final`, and back to 1 at once. period: updates of the first one, by default a third of
    the way after the warm-up; multiplier: how many times longer each next one is. PyTorch's T_0 and T_mult."""
    _check_final("cosine_restarts", final)
    first = max(1, -(-(steps - warmup) // 3)) if period is None else period
    for name, value in (("period", first), ("multiplier", multiplier)):
        if value < 1 or value != int(value):
            raise ValueError(f"cosine_restarts schedule: {name} must be a whole number of at least 1, got {value}")

    def decay(k: int) -> float:
        length, j = first, k - warmup
        if multiplier == 1:
            j %= length
        while j >= length:
            j, length = j - length, length * multiplier
        return final + (1 - final) * (1 + math.cos(math.pi * j / length)) / 2

    return Schedule("cosine_restarts", steps, warmup, decay)


def cyclic(
    steps: int,
    warmup: int = 0,
    base: float = 0.1,
    step_size_up: int | None = None,
    step_size_down: int | None = None,
    mode: str = "triangular",
    gamma: float = 1.0,
) -> Schedule:
    """Straight up from `base`, PyTorch's base_lr / max_lr, to 1 and down again. step_size_up: by default a sixth of the
    way; step_size_down: by default as up. mode: "triangular", "triangular2" (every cycle half as high as the last) or
    "exp_range" (gamma^j as high)."""
    _check_final("cyclic", base, "base")
    up = max(1, (steps - warmup) // 6) if step_size_up is None else step_size_up
    down = up if step_size_down is None else step_size_down
    if min(up, down) < 1:
        raise ValueError(f"cyclic schedule: step_size_up and step_size_down must be at least 1, got {up} and {down}")
    heights: dict[str, Callable[[int, int], float]] = {
        "triangular": lambda cycle, j: 1.0,
        "triangular2": lambda cycle, j: 0.5**cycle,
        "exp_range": lambda cycle, j: gamma**j,
    }
    if mode not in heights:
        raise ValueError(f"cyclic schedule: mode must be one of {', '.join(heights)}, got {mode!r}")
    _check_gamma("cyclic", gamma)

    def decay(k: int) -> float:
        cycle, at = divmod(k - warmup, up + down)
        part = at / up if at <= up else (up + down - at) / down
        return base + (1 - base) * part * heights[mode](cycle, k - warmup)

    return Schedule("cyclic", steps, warmup, decay, peak=decay(warmup))


def one_cycle(
    steps: int,
    warmup: int = 0,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """From 1 / div_factor up to 1 in the first `pct_start` of the way, then down to 1 / (div_factor final_div_factor)
    at its last update. three_phase: down to 1 / div_factor first, in as many updates as it went up."""
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError(f"one_cycle schedule: anneal_strategy must be cos or linear, got {anneal_strategy!r}")
    if not 0 <= pct_start <= (0.5 if three_phase else 1):
        raise ValueError(f"one_cycle schedule: pct_start must be in 0..1 (0..0.5 with three phases), got {pct_start}")
    if not min(div_factor, final_div_factor) >= 1:
        raise ValueError(
            f"one_cycle schedule: div_factor and final_div_factor must be at least 1, got {div_factor} and "
            f"{final_div_factor}"
        )
    way, low, lowest = steps - warmup, 1 / div_factor, 1 / (div_factor * final_div_factor)
    top, last = pct_start * way - 1, max(1, way - 1)
    points = [(0.0, low), (top, 1.0), (last, lowest)]
    if three_phase:
        points[2:] = [(2 * top, low), (last, lowest)]

    def decay(k: int) -> float:
        j = min(k - warmup, last)
        (start, before), (stop, after) = next(pair for pair in itertools.pairwise(points) if j <= pair[1][0])
        p = (j - start) / (stop - start) if stop > start else 1.0
        return after + (before - after) * (1 - p if anneal_strategy == "linear" else (1 + math.cos(math.pi * p)) / 2)

    return Schedule("one_cycle", steps, warmup, decay, peak=decay(warmup))


def sequence(schedules: Sequence[Schedule], milestones: Sequence[int]) -> Schedule:
    """One schedule behind the other: number i + 1 begins, with its k = 0, at update milestones[i]."""
    _check_fixed("sequence", schedules)
    if len(milestones) != len(schedules) - 1:
        raise ValueError(f"sequence: {len(schedules)} schedules take one milestone less, got {len(milestones)}")
    if any(a > b for a, b in zip((0, *milestones), milestones, strict=False)):
        raise ValueError(f"sequence: milestones must rise from 0 or more, got {list(milestones)}")
    starts = (0, *milestones)

    def decay(k: int) -> float:
        i = bisect_right(milestones, k)
        return schedules[i](k - starts[i])

    return Schedule("sequence", starts[-1] + schedules[-1].steps, 0, decay)


def chained(schedules: Sequence[Schedule]) -> Schedule:
    """The product of schedules."""
    if not schedules:
        raise ValueError("chained: there must be at least one schedule")
    _check_fixed("chained", schedules)
    steps = max(schedule.steps for schedule in schedules)
    return Schedule("chained", steps, 0, lambda k: math.prod(schedule(k) for schedule in schedules))


def _check_fixed(name: str, schedules: Sequence[Schedule]) -> None:
    """A Plateau's factor follows from metrics, not from k."""
    for i, one in enumerate(schedules):
        if not isinstance(one, Schedule):
            raise TypeError(f"{name}: schedules[{i}] must be a Schedule, got {type(one).__name__}")


def _check_final(name: str, final: float, option: str = "final") -> None:
    if not 0 <= final <= 1:
        raise ValueError(f"{name} schedule: {option} must be in 0..1, a part of the full rate, got {final}")


def _check_gamma(name: str, gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"{name} schedule: gamma must be above 0 and at most 1, got {gamma}")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "step": step,
    "inverse_square_root": inverse_square_root,
    "polynomial": polynomial,
    "exponential": exponential,
    "multi_step": multi_step,
    "cosine_restarts": cosine_restarts,
    "cyclic": cyclic,
    "one_cycle": one_cycle,
}


def make_schedule(name: str, steps: int, warmup: int = 0, **options: Any) -> Schedule:
    """The schedule called `name`, with its own options. Raises ValueError for a name or option that there is not."""
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; there are {', '.join(SCHEDULES)}")
    known = inspect.signature(SCHEDULES[name]).parameters
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"the {name} schedule has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    return SCHEDULES[name](steps, warmup, **options)
