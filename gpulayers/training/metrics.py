"""One JSON object a line, appended while a run goes: `metrics.jsonl` and `samples.jsonl`.

A line of metrics has `step` (the number of batches done), `loss`, `lr`, `grad_norm`, `tokens_per_second` (or
`images_per_second`), and `val_loss`, perhaps `val_accuracy`, where they were measured. JSON knows no NaN or infinity:
a number that is not finite is written as `null`, which every reader takes for a missing value.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from gpulayers.storage import FileError, StrPath, write_atomically

MOST_STEPS = 2**53  # a float, on the axis of a picture, counts no further


class MetricsFile:
    """Appends records, each flushed to the operating system as it comes, so that a killed process loses none."""

    def __init__(self, path: StrPath, resume_at: int | None = None) -> None:
        """resume_at=None starts a new file; one that exists is refused.

        resume_at=k goes on after step k: lines of later steps, and a line that was cut off, are dropped first (in a
        new file that replaces the old one), so that no step is doubled or missing. Raises FileError.
        """
        self.path = Path(path)
        if resume_at is not None:
            _drop_after(self.path, resume_at)
        try:
            self._file = open(self.path, "xb" if resume_at is None else "ab", buffering=0)  # noqa: SIM115 closed by close
        except OSError as error:
            raise self._error(error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append `record`: JSON values or NumPy scalars. Raises FileError; a part that was written is taken back."""
        text = json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n"
        # A lone surrogate has no UTF-8; backslashreplace writes \udcff for it, which is JSON's own escape.
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        end = self._file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise self._error(error) from error

    def sync(self) -> None:
        """To the disk. Call it before a checkpoint is saved: then no step before it is missing after a power cut."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> FileError:
        return FileError(f"cannot write {self.path}: {error.strerror or error}")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy scalars as Python's, numbers that are not finite as None."""
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def is_finite(value: Any) -> bool:
    """Whether a value of a record is a number that a float can hold: a file may say what it will."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _drop_after(path: Path, step: int) -> None:
    """Rewrite `path` without lines of later steps and lines that are no record, if there are any."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    lines = [line for line in content.split(b"\n") if line]
    records = [_record(line) for line in lines]
    kept = [line + b"\n" for line, record in zip(lines, records, strict=True) if record and record["step"] <= step]
    if (wanted := b"".join(kept)) != content:
        write_atomically(path, wanted)


def _record(line: bytes) -> dict[str, Any] | None:
    """The object of one line; None unless it is a whole one with a step."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and type(step := record.get("step")) is int and 0 <= step <= MOST_STEPS:
            return record
    return None


def read_metrics(path: StrPath, warn: Callable[[str], object] | None = None) -> list[dict[str, Any]]:
    """All records. A last line that was cut off is passed over; one before it raises FileError naming the line.

    warn: is told that instead, of the first such line, and the rest is read.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    records: list[dict[str, Any]] = []
    told = False
    for number, line in enumerate(lines, 1):
        if (record := _record(line)) is not None:
            records.append(record)
        elif line.strip() and number < len(lines):
            sentence = f"line {number} of {path} is not a record with a step"
            if warn is None:
                raise FileError(sentence)
            if not told:
                warn(f"{sentence}; passed over")
            told = True
    return records
