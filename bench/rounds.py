"""Interleaved rounds: every variant is timed once in each, so that a slow minute of the machine hits all alike."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.worker import Worker

DISTURBED = 0.05  # a window in which others used more than this share of the cores is dropped


@dataclass
class Timing:
    """Of one variant: the median step time of its window in each round (None: no quiet window was found)."""

    rounds: list[float | None] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)  # of dropped windows

    @property
    def quiet(self) -> list[float]:
        return [time for time in self.rounds if time is not None]

    @property
    def seconds(self) -> float:
        """Median over the rounds; over the dropped windows if there is no other."""
        return statistics.median(self.quiet or self.disturbed)

    @property
    def best(self) -> float:
        return min(self.quiet or self.disturbed)


class Entry(NamedTuple):
    worker: Worker
    name: str  # of the subject in the worker


class Protocol(NamedTuple):
    """A window takes at least `steps` steps and `seconds`; `patience` windows are tried for a quiet one."""

    rounds: int
    steps: int
    seconds: float
    patience: int = 3
    clock: str = "wall"


def run_rounds(entries: Sequence[Entry], protocol: Protocol) -> list[Timing]:
    timings = [Timing() for _ in entries]
    for number in range(protocol.rounds):
        for k in range(len(entries)):
            i = (k + number) % len(entries)  # nobody is always the one after the same neighbour
            timings[i].rounds.append(_quiet_window(entries[i], timings[i], protocol))
    return timings


def _quiet_window(entry: Entry, timing: Timing, protocol: Protocol) -> float | None:
    for _ in range(protocol.patience):
        window = entry.worker.ask(
            "run", name=entry.name, steps=protocol.steps, seconds=protocol.seconds, clock=protocol.clock
        )
        time = statistics.median(window["times"])
        if window["others"] is None or window["others"] <= DISTURBED:
            return time
        timing.disturbed.append(time)
    return None


def ratio(ours: Timing, theirs: Timing) -> dict[str, float] | None:
    """Median and range of the per-round ratios, over the rounds in which both had a quiet window."""
    ratios = [a / b for a, b in zip(ours.rounds, theirs.rounds, strict=True) if a is not None and b is not None]
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "rounds": len(ratios)}
