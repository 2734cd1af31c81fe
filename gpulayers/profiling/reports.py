"""Exported reports of either profiler."""

from pathlib import Path

from gpulayers.profiling.ncu_report import read_ncu
from gpulayers.profiling.nsys_report import read_nsys
from gpulayers.profiling.table import Profile
from gpulayers.storage import FileError, StrPath


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
