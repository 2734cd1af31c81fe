"""Programs on several ranks: `run(3, "checks.py")` by the mpiexec of this Python's environment."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(),
    reason="the extra [mpi], mpi4py and mpich, is not installed in this environment",
)
TESTS = Path(__file__).parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
}


def command(ranks: int, *words: object) -> list[str]:
    """words: what each rank's Python gets, a script and its arguments, or `-m gpulayers.cli` and so on."""
    return [str(MPIEXEC), "-n", str(ranks), sys.executable, "-W", "error", *map(str, words)]


def each(*words: list[str]) -> list[str]:
    """The command that gives each rank words of its own."""
    ranks = [["-n", "1", sys.executable, "-W", "error", *map(str, own)] for own in words]
    return [str(MPIEXEC), *(word for own in ranks for word in [*own, ":"])][:-1]


def run(arguments: list[str], timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """mpiexec to its end. stderr is that of all ranks, in no order."""
    return subprocess.run(
        arguments,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )


def check(ranks: int, *files: Path, device: str = "emulated") -> None:
    """Files that assert, on every rank, pass on all of them."""
    script = TESTS / "parallel" / "run_checks.py"
    done = run(command(ranks, script, *files), timeout=300, CHECKS_DEVICE=device)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"rank-{rank}-of-{ranks}" for rank in range(ranks)], done.stdout
