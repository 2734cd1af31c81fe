"""A report of Nsight Systems, exported by `nsys export --type=sqlite`, read into a `Profile`.

Each row of CUPTI_ACTIVITY_KIND_KERNEL (start, end in ns, names in StringIds) has the correlationId of the
CUPTI_ACTIVITY_KIND_RUNTIME call that launched it; the NVTX_EVENTS of that call's thread which are open at its start say
which layer it was.
"""

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpulayers.profiling.nvtx_ranges import DOMAIN
from gpulayers.profiling.ranges import Range, place
from gpulayers.profiling.table import Key, Profile, Row
from gpulayers.storage import FileError, StrPath

PUSH_POP, DOMAIN_CREATE = 59, 75  # ENUM_NSYS_EVENT_TYPE


class _Open(NamedTuple):
    """An NVTX range on a thread."""

    start: int
    end: int
    range: Range
    payload: int | None


def read_nsys(path: StrPath) -> Profile:
    """The kernels inside our NVTX ranges. Raises FileError where the tables are not there."""
    with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
        try:
            ranges = _nvtx_ranges(database)
            kernels = _kernels(database)
            bandwidth = _bandwidth(database)
        except sqlite3.Error as error:
            raise FileError(f"{path} is no SQLite export of nsys with CUDA and NVTX in it: {error}") from error
    rows: dict[Key, Row] = defaultdict(Row)
    for thread, calls in kernels.items():
        for (_, name, seconds), opened in _enclosing(calls, ranges.get(thread, [])):
            payload = opened[-1].payload if opened and opened[-1].range.kind == "launch" else None
            rows[Key(*place([one.range for one in opened]), name)].add(seconds, payload)
    steps = sum(one.range.kind == "step" for found in ranges.values() for one in found)
    notes = () if steps else ("the report has no steps: were the ranges on?  gpulayers profile nsys -- train ...",)
    return Profile(dict(rows), steps, bandwidth, "what the driver says of the memory", notes)


def _nvtx_ranges(database: sqlite3.Connection) -> dict[int, list[_Open]]:
    """Thread -> its ranges in our domain, by start. Where no domain of ours is listed, those of all domains."""
    columns = {row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")}
    payload = "coalesce(uint64Value, int64Value)" if {"uint64Value", "int64Value"} <= columns else "NULL"
    text = "coalesce(e.text, s.value)"
    join = "FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId"
    domains = database.execute(
        f"SELECT domainId {join} WHERE eventType = ? AND {text} = ?", (DOMAIN_CREATE, DOMAIN)
    ).fetchall()
    ours = f"AND domainId IN ({', '.join(str(int(d)) for (d,) in domains)})" if domains else ""
    found = database.execute(
        f"SELECT globalTid, start, end, {text}, {payload} {join} "
        f"WHERE eventType = ? AND end IS NOT NULL {ours} ORDER BY start, end DESC",
        (PUSH_POP,),
    )
    ranges: dict[int, list[_Open]] = defaultdict(list)
    for thread, start, end, name, value in found:
        if name:
            ranges[thread].append(_Open(start, end, Range.parse(name), value))
    return ranges


def _kernels(database: sqlite3.Connection) -> dict[int, list[tuple[int, str, float]]]:
    """Thread that launched -> (moment of the launch, kernel, seconds on the GPU), by moment."""
    found = database.execute(
        # Correlation ids are counted in each process anew; the upper bits of a thread's id are its process.
        "SELECT r.globalTid, r.start, s.value, (k.end - k.start) / 1e9 "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
        "  AND (k.globalPid IS NULL OR r.globalTid / 0x1000000 = k.globalPid / 0x1000000) "
        "LEFT JOIN StringIds s ON s.id = k.shortName ORDER BY r.start"
    )
    kernels: dict[int, list[tuple[int, str, float]]] = defaultdict(list)
    for thread, start, name, seconds in found:
        kernels[thread].append((start, name or "?", seconds))
    return kernels


def _bandwidth(database: sqlite3.Connection) -> float | None:
    """Bytes a second of the GPU's memory, if the report knows."""
    with contextlib.suppress(sqlite3.Error):
        found = database.execute("SELECT max(memoryBandwidth) FROM TARGET_INFO_GPU").fetchone()
        return float(found[0]) if found and found[0] else None
    return None


def _enclosing(calls: Iterable[tuple[int, str, float]], ranges: list[_Open]) -> Iterator[tuple[Any, list[_Open]]]:
    """Each call with the ranges that are open at its moment, outermost first; both are sorted by start."""
    opened: list[_Open] = []
    following = 0
    for call in calls:
        while following < len(ranges) and ranges[following].start <= call[0]:
            one = ranges[following]
            opened = [o for o in opened if o.end > one.start] + [one]
            following += 1
        opened = [o for o in opened if o.end > call[0]]
        yield call, opened
