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
from gpulayers.training.threads import long_enough

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # bench is not installed; it is run from the repository

from bench import (  # noqa: E402 after the path
    all_cases,
    cases,
    compare,
    machine,
    model_cases,
    model_ours,
    ops,
    ops_ours,
    plot,
    rounds,
    target_cases,
    train,
    worker,
)


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_and_compare(tmp_path):
    path, picture = tmp_path / "train.json", tmp_path / "train.png"
    options = ("--case", "tiny", "--rounds", "1", "--threads", "1", "--variants", "gpulayers", "--plot", str(picture))
    printed = run("bench.train", "--quick", "--clock", "cpu", "--json", str(path), *options)
    assert picture.read_bytes().startswith(b"\x89PNG")
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
    assert [row["body"] for row in rows] == ["cpu"]
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_every_op_has_a_case():
    found = set()
    for module in pkgutil.iter_modules(gpulayers.ops.__path__, "gpulayers.ops."):
        found |= {value.name for value in vars(importlib.import_module(module.name)).values() if isinstance(value, Op)}
    missing = found - {case.op.name for case in all_cases.CASES.values()}
    assert not missing, f"bench/ has no case for {sorted(missing)}"


def test_a_wrong_body_is_not_timed():
    case = cases.CASES["update_control"]
    with pytest.raises(ValueError, match="so not timed"):
        ops_ours.Call(case, lambda *arguments: None, case.written)


@pytest.mark.parametrize(("case", "threads", "pieces"), [("base", 2, True), ("small", 2, False), ("seq2seq", 2, False)])
def test_ours_is_what_a_run_does(case, threads, pieces):
    """`gpulayers train` takes pieces on threads where they are long enough: threads_for."""
    sizes = model_cases.CASES[case].sizes
    assert long_enough(sizes.batch // threads, sizes.grain) == pieces


@pytest.mark.parametrize("name", ["tiny", "seq2seq tiny", "vit tiny"])
def test_every_model_computes_the_same_on_threads(name):
    kind, sizes = model_cases.CASES[name]
    losses = [
        model_ours.make(kind, list(sizes), threads, dtype).facts["losses"]
        for threads, dtype in ((1, "float64"), (1, "float32"), (2, "float32"))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=train.TOLERANCE)
    assert losses[2] == pytest.approx(losses[0], rel=train.TOLERANCE)


@pytest.mark.parametrize("name", ["tiny", "seq2seq tiny", "vit tiny"])
def test_the_twin_in_pytorch_computes_the_same(name):
    pytest.importorskip("torch")
    from bench import model_torch

    kind, sizes = model_cases.CASES[name]
    exact = model_ours.make(kind, list(sizes), 1, "float64").facts["losses"]
    assert model_torch.make(kind, list(sizes), 1).facts["losses"] == pytest.approx(exact, rel=train.TOLERANCE)


def test_the_cases_have_the_sizes_of_their_targets():
    assert {target.case for target in model_cases.TARGETS} <= model_cases.CASES.keys()
    assert model_cases.CASES["large"].sizes.vocab == 50257
    assert [t.time for t in model_cases.targets("base", 2)] == [0.82, 0.97, 0.95]
    assert [t.time for t in model_cases.targets("base", 1)] == [0.83]


def test_targets_are_judged():
    ours = {"peak_bytes": 40, "ratio_to": {"torch": {"median": 0.9}}}
    rows = train.judged("small", 2, {"gpulayers": ours, "torch": {"peak_bytes": 200}})
    assert [(row["what"], row["found"], row["met"]) for row in rows] == [("time", 0.9, True), ("memory", 0.2, True)]
    assert train.aim_text(rows[0]) == ", target 0.95 met"
    assert train.aim_text({"target": 0.5, "met": False}) == ", target 0.50 NOT met"
    assert [row["met"] for row in train.judged("small", 2, {})] == [None, None]


def test_compare_shows_memory_ratios_and_targets_that_changed(capsys, tmp_path):
    def result(median):
        variant = {"seconds": 1.0, "peak_bytes": 5e6, "ratio_to": {"torch": {"median": median}}}
        variants = {"gpulayers": variant, "torch": {"seconds": 1.0, "peak_bytes": 9e6, "ratio_to": {}}}
        judged = train.judged("small", 2, variants)
        return {"bench": "train", "case": "small", "machine": {}, "variants": variants, "targets": judged}

    for name, median in (("old", 1.0), ("new", 0.9)):
        (tmp_path / name).write_text(json.dumps(result(median)))
    compare.main([str(tmp_path / "old"), str(tmp_path / "new")])
    printed = capsys.readouterr().out
    assert "gpulayers  1000.000  1000.000       1.00       5       5         1.00         0.90" in printed
    assert "target time / torch 0.95: NOT met before, met now" in printed
    (tmp_path / "other").write_text(json.dumps(result(1.0) | {"case": "base"}))
    with pytest.raises(SystemExit, match="one file is of the case small, the other of base"):
        compare.main([str(tmp_path / "old"), str(tmp_path / "other")])


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


def test_threads_of_a_case_give_the_results_of_one(monkeypatch):
    case = target_cases.CASES["attention both"]
    assert case.threaded
    found = ops_ours.Call(case, case.threaded(3), case.written).facts  # is compared with float64
    assert found["error"] < 1e-5


def test_adam_of_a_case_is_a_step_of_the_optimizer(monkeypatch):
    monkeypatch.setattr(target_cases, "TENSORS", 2)
    monkeypatch.setattr(target_cases, "EACH", 64)
    case = target_cases.CASES["adam 20 tensors"]
    assert ops_ours.Call(case, target_cases.adam_on(2), ()).facts["error"] < 1e-6


def test_a_case_with_targets_times_its_threads():
    assert ops.bodies("attention both", 2) == ["cpu", "threads"]
    assert ops.bodies("attention both", 1) == ["cpu"]
    assert ops.bodies("layernorm both", 2) == ["cpu"]
    assert ops.bodies("layernorm", 2) == ["reference", "cpu"]


def test_quick_leaves_out_references_and_rare_ops():
    assert ops.bodies("layernorm", 2, quick=True) == ["cpu"]
    assert ops.bodies("add", 2, quick=True) == ["reference"]  # it has no other
    assert set(ops.QUICK) < set(all_cases.CASES)


def test_the_chart_of_ratios(tmp_path):
    row = {"case": "a", "body": "cpu", "ratio_to_torch": {"median": 0.5}, "target": 0.8}
    rows = [row, row | {"body": "threads", "ratio_to_torch": {"median": 0.3}}, row | {"ratio_to_torch": None}]
    plot.plot_ratios({"rows": rows, "machine": {"cpu": "c", "threads": 2}}, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
