"""The certificate: all rows of a run, the machine that they were measured on, and both as a table and as JSON."""

import json
import platform
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import gpulayers
from gpulayers.backend import use
from gpulayers.cuda import GPUUnavailable
from gpulayers.emulator.errors import ToolkitMissing
from gpulayers.training.options import suggestion
from gpulayers.verify import tolerances
from gpulayers.verify.case import Case, GradientCase, LayerCase, OpCase, make_cases
from gpulayers.verify.cases import MAKERS
from gpulayers.verify.layers import check_gradient, check_layer
from gpulayers.verify.ops import check_op
from gpulayers.verify.result import Row

HEADINGS = ("op", "case", "body", "dtype", "worst error", "tolerance", "")


class UnknownName(ValueError):
    """No case is about an op or layer of this name; the message is one sentence."""


@dataclass(frozen=True)
class Certificate:
    """What was verified, and where. `machine`: names and versions for people."""

    backend: str
    quick: bool
    machine: dict[str, str]
    rows: list[Row]
    seconds: float

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.passed]


def collect(names: Sequence[str] = (), quick: bool = False) -> list[Case]:
    """The cases of the named ops and layers, by default of all. quick: without the large ones. Raises UnknownName."""
    cases = list(make_cases(MAKERS))
    known = set[str]().union(*map(covers, cases))
    for name in names:
        if name not in known:
            raise UnknownName(f"no op or layer is called {name!r}{suggestion(name, known)}")
    return [case for case in cases if (not names or covers(case) & set(names)) and not (quick and case.large)]


def covers(case: Case) -> set[str]:
    """The ops or the layer that a case is about."""
    return {op.name for op in case.ops} if isinstance(case, GradientCase) else {case.subject}


def run(
    backend: str = "numpy",
    names: Sequence[str] = (),
    *,
    quick: bool = False,
    progress: Callable[[list[Case]], Iterable[Case]] | None = None,
    jobs: int = 1,
) -> Certificate:
    """Verify the named ops and layers, by default all.

    backend: 'numpy' checks the reference and the CPU bodies; 'emulated' and 'cupy' check the kernels there besides.
    quick: float32 alone, and without the large cases. progress: wraps the list of cases, as tqdm does. jobs: processes
    that share the cases out, with one BLAS thread each; the order of the rows does not depend on it. They are started
    anew: a script that asks for more than one needs its `if __name__ == "__main__":`.

    Raises UnknownName for a name that has no cases, `gpulayers.cuda.GPUUnavailable` where the backend cannot be used.
    """
    cases = collect(names, quick)
    machine = describe(backend)
    start = time.perf_counter()
    rows = []
    found = (
        (check(case, backend, quick) for case in cases)
        if jobs == 1
        else in_processes(jobs, cases, backend, names, quick)
    )
    for _, its in zip(cases if progress is None else progress(cases), found, strict=True):
        rows.extend(its)
    return Certificate(backend, quick, machine, rows, time.perf_counter() - start)


def in_processes(
    jobs: int, cases: Sequence[Case], backend: str, names: Sequence[str], quick: bool
) -> Iterator[list[Row]]:
    """What `check` gives of each case, in order. Neighbours of one op go together: its kernel is compiled once."""
    subjects = [case.subject for case in cases]
    starts = [i for i, subject in enumerate(subjects) if i == 0 or subject != subjects[i - 1]]
    groups = [range(*bounds) for bounds in pairwise([*starts, len(subjects)])]
    # spawned, not forked: BLAS has threads. Each makes the cases anew, for a function cannot be sent
    jobs = min(jobs, len(groups), MOST_PROCESSES)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), prepare_process, (backend, tuple(names), quick))
    try:
        for rows_of_group in pool.map(check_group, groups):
            yield from rows_of_group
    finally:
        pool.shutdown(cancel_futures=True)


MOST_PROCESSES = 61  # that Windows lets one process wait for
_process: tuple[str, bool, list[Case]]  # of a process that checks a share: backend, quick, all cases


def prepare_process(backend: str, names: tuple[str, ...], quick: bool) -> None:
    global _process
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C, which all processes get, is the first one's to tell
    threadpool_limits(1)
    _process = backend, quick, collect(names, quick)


def check_group(group: range) -> list[list[Row]]:
    backend, quick, cases = _process
    return [check(cases[i], backend, quick) for i in group]


def check(case: Case, backend: str, quick: bool = False) -> list[Row]:
    """The rows of one case."""
    if isinstance(case, OpCase):
        return list(check_op(case, backend, quick))
    if isinstance(case, LayerCase):
        return list(check_layer(case, backend, quick))
    return [check_gradient(case)]


# ------------------------------------------------------------------------------------------------ the machine


def describe(backend: str) -> dict[str, str]:
    """Names and versions of what runs the bodies. Raises GPUUnavailable."""
    facts = {"gpulayers": gpulayers.__version__, "device": cpu_model()}
    if backend != "numpy":
        try:
            facts |= gpu_facts(use(backend), backend)
        except ToolkitMissing as error:  # the emulated device has no compiler
            raise GPUUnavailable(str(error)) from error
    blas = {
        f"{library['internal_api']} {library['version']}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
    return facts | {
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": ", ".join(sorted(blas)) or "unknown",
        "ml_dtypes": metadata.version("ml_dtypes"),
    }


def gpu_facts(xp: Any, backend: str) -> dict[str, str]:
    """The device's name, its compute capability, and the versions under it."""
    runtime = xp.cuda.runtime
    capability = xp.cuda.Device().compute_capability
    facts = {
        "compute capability": f"{capability[:-1]}.{capability[-1]}",
        "cuda": cuda_version(runtime.runtimeGetVersion()),
    }
    if backend == "emulated":
        return facts | {"device": f"emulated on {cpu_model()}"}
    name = runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    return facts | {"device": name, "driver": cuda_version(runtime.driverGetVersion()), "cupy": xp.__version__}


def cuda_version(number: int) -> str:
    """13020 -> '13.2'."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------------------- as text


def table(rows: Sequence[Row], every: bool = False) -> str:
    """A line for each op, body and dtype with its worst case, and a line for each failure; or for every row."""
    shown = [(row, 1) for row in rows] if every else worst_of_each(rows)
    lines = [HEADINGS, *(cells(row, count) for row, count in shown)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def worst_of_each(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.subject, row.body, row.dtype].append(row)
    shown = []
    for group in groups.values():
        failed = [row for row in group if not row.passed]
        shown += [(row, 1) for row in failed] or [(max(group, key=lambda row: row.share), len(group))]
    return shown


def cells(row: Row, count: int) -> tuple[str, ...]:
    case = row.case if count == 1 else f"{row.case} (worst of {count})"
    measured = not np.isnan(row.error)
    error, tolerance = (f"{row.error:.1e}", f"{row.tolerance:.1e}") if measured else ("-", "-")
    verdict = "pass" if row.passed else f"FAIL  {row.note}"
    return row.subject, case, row.body, row.dtype, error, tolerance, verdict.rstrip()


def summary(certificate: Certificate) -> str:
    """The machine, and the verdict in the last line."""
    c = certificate
    lines = [f"{name:<20}{value}" for name, value in c.machine.items()]
    subjects = len({(row.kind == "layer", row.subject) for row in c.rows})
    verdict = f"{len(c.rows)} checks of {subjects} ops and layers in {c.seconds:.0f} s"
    if c.failed:
        names = sorted({row.subject for row in c.failed})
        return "\n".join([*lines, "", f"{verdict}: {len(c.failed)} FAILED, in {', '.join(names)}"])
    return "\n".join(
        [*lines, "", f"{verdict}: all passed" + " (quick: float32 alone, without the large cases)" * c.quick]
    )


def to_json(certificate: Certificate) -> str:
    """Everything that was measured. An error that is no number is null."""
    c = certificate
    rows = [asdict(row) | {"error": row.error if np.isfinite(row.error) else None} for row in c.rows]
    content = {
        "backend": c.backend,
        "quick": c.quick,
        "machine": c.machine,
        "seconds": round(c.seconds, 3),
        "tolerances": tolerances.RELATIVE | {"gradient": tolerances.GRADIENT},
        "checks": len(rows),
        "failed": len(c.failed),
        "rows": rows,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
