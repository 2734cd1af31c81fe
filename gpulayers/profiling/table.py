"""One table for every profiler: a row for each kernel of each layer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """layer: dotted name, "loss", "optimizer", or "" outside of all. phase: forward, backward, evaluation or ""."""

    layer: str
    phase: str
    kernel: str


@dataclass
class Row:
    """Sums over all launches. seconds, bytes: None where nobody measured or told them."""

    launches: int = 0
    seconds: float | None = None
    bytes: float | None = None
    operations: float | None = None

    def add(
        self, seconds: float | None, bytes: float | None, operations: float | None = None, launches: int = 1
    ) -> None:
        self.launches += launches
        self.seconds = _sum(self.seconds, seconds)
        self.bytes = _sum(self.bytes, bytes)
        self.operations = _sum(self.operations, operations)


def _sum(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b


class Profile(NamedTuple):
    """What a profiler found in `steps` steps.

    bandwidth: bytes a second that the memory can do, None if nobody knows, and what it is called: "measured copy".
    notes: lines for the end of the table.
    """

    rows: dict[Key, Row]
    steps: int
    bandwidth: float | None = None
    bandwidth_name: str = ""
    notes: tuple[str, ...] = ()


def merged(rows: dict[Key, Row]) -> dict[Key, Row]:
    """The same layer of all blocks in one row: blocks.0.ln_1, blocks.1.ln_1 -> blocks.*.ln_1."""
    found: dict[Key, Row] = {}
    for key, row in rows.items():
        layer = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", key.layer)
        one = found.setdefault(key._replace(layer=layer), Row())
        one.add(row.seconds, row.bytes, row.operations, row.launches)
    return found


def table(profile: Profile, each: bool = False, top: int = 0) -> str:
    """The profile as text, the longest rows first (without times: those that move most).

    each: blocks one by one rather than together. top: number of rows, 0 for all.
    """
    rows = profile.rows if each else merged(profile.rows)
    total = sum(row.seconds or 0 for row in rows.values())
    order = sorted(rows.items(), key=lambda item: (-(item[1].seconds or 0), -(item[1].bytes or 0), item[0]))
    shown = order[:top] if top else order
    head = ["layer", "pass", "kernel", "launches", "ms", "us each", "MB", "GB/s", "of peak", "GFLOP/s", "of time"]
    lines = [head, *(_cells(key, row, profile, total) for key, row in shown)]
    used = [i for i in range(len(head)) if i < 3 or any(line[i] for line in lines[1:])]
    text = _aligned([[line[i] for i in used] for line in lines])
    if len(shown) < len(order):
        text += f"\n... and {len(order) - len(shown)} rows more"
    return "\n".join([text, "", *_closing(profile, total), *profile.notes])


def _cells(key: Key, row: Row, profile: Profile, total: float) -> list[str]:
    steps, seconds = max(1, profile.steps), row.seconds or 0
    rate = row.bytes / seconds if seconds and row.bytes else 0
    return [
        key.layer or "-",
        key.phase or "-",
        key.kernel,
        f"{row.launches / steps:g}",
        f"{seconds / steps * 1e3:.3f}" if seconds else "",
        f"{seconds / row.launches * 1e6:.1f}" if seconds else "",
        f"{row.bytes / steps / 1e6:.3f}" if row.bytes is not None else "",
        f"{rate / 1e9:.1f}" if rate else "",
        f"{rate / profile.bandwidth:.0%}" if rate and profile.bandwidth else "",
        f"{row.operations / seconds / 1e9:.0f}" if seconds and row.operations else "",
        f"{seconds / total:.1%}" if seconds else "",
    ]


def _closing(profile: Profile, total: float) -> Iterable[str]:
    yield f"launches, ms and MB are for one step, the mean of {profile.steps}; MB are bytes read plus written"
    if total:
        yield f"all rows together: {total / max(1, profile.steps) * 1e3:.3f} ms a step"
    if profile.bandwidth:
        yield f"peak: {profile.bandwidth / 1e9:.0f} GB/s, {profile.bandwidth_name}"


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
