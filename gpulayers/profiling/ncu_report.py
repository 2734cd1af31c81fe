"""A report of Nsight Compute, exported by `ncu --csv`, read into a `Profile`.

--page raw has a row a launch and a column a metric, with the units in the line below the head; --page details a row a
metric. A column "... Push/Pop_Range ..." holds the open ranges, each in quotes, as domain:range:...
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpulayers.profiling.nvtx_ranges import DOMAIN
from gpulayers.profiling.ranges import Range, place
from gpulayers.profiling.table import Key, Profile, Row
from gpulayers.storage import FileError, StrPath

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
