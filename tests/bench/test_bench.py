"""The machinery of bench/ on tiny cases: it runs, checks what it times, drops disturbed windows, writes its files."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpulayers.ops
from gpulayers.ops.op import Op

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # bench is not installed; it is run from the repository

from bench import cases, machine, ops_ours, rounds, worker  # noqa: E402 after the path


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_and_compare(tmp_path):
    path = tmp_path / "train.json"
    options = ("--case", "tiny", "--rounds", "1", "--threads", "1", "--variants", "gpulayers")
    printed = run("bench.train", "--quick", "--clock", "cpu", "--json", str(path), *options)
    assert "tokens/s" in printed
    result = json.loads(path.read_text())
    ours = result["variants"]["gpulayers"]
    assert ours["seconds"] > 0
    assert ours["error"] < 1e-5
    assert result["machine"]["numpy"] == np.__version__
    assert "1.00" in run("bench", "compare", str(path), str(path))


def test_ops(tmp_path):
    path = tmp_path / "ops.json"
    run("bench.ops", "--quick", "--no-torch", "--threads", "1", "--json", str(path), "update_control")
    rows = json.loads(path.read_text())["rows"]
    assert [row["body"] for row in rows] == ["reference", "cpu"]
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_every_op_has_a_case():
    found = set()
    for module in pkgutil.iter_modules(gpulayers.ops.__path__, "gpulayers.ops."):
        found |= {value.name for value in vars(importlib.import_module(module.name)).values() if isinstance(value, Op)}
    missing = found - {case.op.name for case in cases.CASES.values()}
    assert not missing, f"bench/cases.py has no case for {sorted(missing)}"


def test_a_wrong_body_is_not_timed():
    case = cases.CASES["update_control"]
    with pytest.raises(ValueError, match="so not timed"):
        ops_ours.Call(case, lambda *arguments: None, case.written)


class FakeWorker:
    """Answers `run` with windows (step time, share of others) from a list."""

    def __init__(self, *windows):
        self.windows = list(windows)

    def ask(self, command, **arguments):
        time, others = self.windows.pop(0)
        return {"times": [time], "others": others}


def test_disturbed_windows_are_dropped_and_counted():
    ours = FakeWorker((9.0, 0.5), (1.0, 0.0), (2.0, 0.0), (9.0, 0.5), (9.0, 0.5))
    theirs = FakeWorker((2.0, 0.0), (1.0, 0.0), (5.0, 0.0))
    entries = [rounds.Entry(ours, "ours"), rounds.Entry(theirs, "theirs")]
    a, b = rounds.run_rounds(entries, rounds.Protocol(rounds=3, steps=1, seconds=0.0, patience=2))
    assert a.rounds == [1.0, 2.0, None]
    assert a.disturbed == [9.0, 9.0, 9.0]
    assert rounds.ratio(a, b) == {"median": 1.25, "low": 0.5, "high": 2.0, "rounds": 2}


def test_an_error_in_a_worker_is_one_of_the_parent():
    with worker.Worker("w", threads=1) as w, pytest.raises(worker.WorkerError, match=r"w: .*no_such"):
        w.ask("call", function="bench.machine:no_such", options={})


def test_workers_do_not_inherit_a_forced_kernel(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    with worker.Worker("w", threads=1) as w:
        assert w.ask("call", function="os:getenv", options={"key": "OPENBLAS_CORETYPE"}) is None
        assert w.ask("call", function="os:getenv", options={"key": "OPENBLAS_NUM_THREADS"}) == "1"


@pytest.mark.skipif(machine.memory("VmHWM") is None, reason="needs /proc")
def test_peak_memory_starts_again():
    before = machine.memory("VmRSS")
    large = np.ones(1 << 24, np.uint8)
    machine.reset_peak_memory()
    del large
    machine.reset_peak_memory()
    assert machine.memory("VmHWM") < before + (1 << 24)
