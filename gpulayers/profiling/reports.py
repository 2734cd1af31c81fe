"""Reports of Nsight Systems and Nsight Compute, as they export them, read into a `Profile`.

nsys export --type=sqlite: each row of CUPTI_ACTIVITY_KIND_KERNEL (start, end in ns, names in StringIds) has the
correlationId of the CUPTI_ACTIVITY_KIND_RUNTIME call that launched it; the NVTX_EVENTS of that call's thread which
are open at its start say which layer it was.

ncu --csv: a row a launch and a column a metric (--page raw, units in the line below the head), or a row a metric
(--page details). A column "... Push/Pop_Range ..." holds the open ranges, each in quotes, as domain:range:...
"""

import contextlib
import csv
import re
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


def read_report(path: StrPath) -> Profile:
    """An exported report: SQLite of nsys, or CSV of ncu. Raises FileError, one sentence, for anything else."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise FileError(
            f"{path} must be exported first: nsys export --type=sqlite -o {path.with_suffix('.sqlite')} {path}"
        )
    if path.suffix == ".ncu-rep":
        raise FileError(
            f"{path} must be exported first: ncu --import {path} --csv --page raw > {path.with_suffix('.csv')}"
        )
    return read_nsys(path) if head == b"SQLite format 3\0" else read_ncu(path)


# ------------------------------------------------------------------------------------------------------ nsys


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


# ------------------------------------------------------------------------------------------------------- ncu

DURATIONS = ("gpu__time_duration.sum", "Duration")
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
PERCENT = "dram__bytes.sum.pct_of_peak_sustained_elapsed"
PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def read_ncu(path: StrPath) -> Profile:
    """The launches in an `ncu --csv` export, of either page. Raises FileError for any other file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    lines = text.splitlines()
    # The program's own output and ncu's "==PROF==" lines can stand before the table.
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and "Kernel Name" in line), None)
    if start is None:
        raise FileError(f"{path} is neither a SQLite export of nsys nor a CSV export of ncu (ncu --csv --page raw)")
    rows: dict[Key, Row] = defaultdict(Row)
    most, peak = 0.0, None
    for opened, kernel, metrics in _launches(csv.DictReader(lines[start:])):
        moved = metrics[READ] + metrics[WRITTEN] if {READ, WRITTEN} <= metrics.keys() else None
        seconds = next((metrics[name] for name in DURATIONS if name in metrics), None)
        rows[Key(*place(opened), kernel)].add(seconds, moved)
        if moved and seconds and metrics.get(PERCENT) and moved > most:
            most, peak = moved, moved / seconds / metrics[PERCENT] * 100
    notes = ("a launch is measured alone, from a cold cache: MB is what really went to and from memory",)
    return Profile(dict(rows), 1, peak, "what ncu takes for the peak of the memory", notes)


def _launches(reader: csv.DictReader) -> Iterator[tuple[list[Range], str, dict[str, float]]]:
    """(open ranges, kernel, metrics in seconds, bytes, ...) of every launch."""
    if "Metric Name" in (reader.fieldnames or ()):
        yield from _details(reader)
        return
    units: dict[str, str] = {}
    for row in reader:
        if not row["ID"]:
            units = {name: unit or "" for name, unit in row.items() if name}
        elif row["ID"].isdigit():
            values = {name: _number(text, units.get(name, "")) for name, text in row.items() if name}
            yield _ranges(row), row["Kernel Name"], {name: v for name, v in values.items() if v is not None}


def _details(reader: csv.DictReader) -> Iterator[tuple[list[Range], str, dict[str, float]]]:
    found: dict[str, tuple[list[Range], str, dict[str, float]]] = {}
    for row in reader:
        if row["ID"] and row["ID"].isdigit():
            launch = found.setdefault(row["ID"], (_ranges(row), row["Kernel Name"], {}))
            value = _number(row.get("Metric Value") or "", row.get("Metric Unit") or "")
            if value is not None:
                launch[2][row["Metric Name"]] = value
    yield from found.values()


def _ranges(row: dict[str, Any]) -> list[Range]:
    cell = next((value for name, value in row.items() if name and "Push/Pop_Range" in name), None) or ""
    return [Range.parse(text) for text in re.findall(rf'"{DOMAIN}:([^:"]*):', cell)]


def _number(text: str, unit: str) -> float | None:
    """The value in seconds, bytes or whatever the unit counts; None for "n/a" and texts."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    unit = unit.replace("second", "s").replace("Kbyte", "kbyte").replace("msec", "ms").replace("usec", "us")
    match = re.fullmatch(r"([numkMGT]?)(s|byte)(/s)?", unit)
    return value * PREFIXES[match[1]] if match else value
