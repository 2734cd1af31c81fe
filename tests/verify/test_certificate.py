"""The whole run, its table and its JSON; and kernels on the emulated device."""

import json

import numpy as np
import pytest

from gpulayers.cuda import GPUUnavailable
from gpulayers.emulator.errors import ToolkitMissing
from gpulayers.ops import layernorm as module
from gpulayers.verify import UnknownName, certificate, run, summary, table, to_json
from gpulayers.verify.certificate import Certificate, cpu_model, cuda_version
from gpulayers.verify.result import Row


def row(passed=True, **changes):
    values = {
        "kind": "op", "subject": "relu", "case": "D 5", "body": "cpu", "dtype": "float32", "error": 1e-7,
        "tolerance": 2e-6, "passed": passed, "note": "",
    }  # fmt: skip
    return Row(**(values | changes))


def test_some_ops_on_numpy():
    seen = []
    found = run(
        "numpy", ["layernorm", "rmsnorm_backward", "RMSNorm"], progress=lambda cases: seen.extend(cases) or cases
    )
    assert not found.failed
    assert {r.subject for r in found.rows} == {"layernorm", "layernorm_backward", "rmsnorm_backward", "RMSNorm"}
    assert {r.body for r in found.rows} == {"reference", "cpu", "backward", "numpy"}
    assert len(seen) < len(found.rows)
    assert found.machine["device"] == cpu_model()
    assert found.machine.keys() >= {"gpulayers", "numpy", "python", "blas"}


@pytest.mark.slow
def test_everything_on_numpy():
    assert [(r.subject, r.case, r.body, r.dtype, r.note) for r in run("numpy").failed] == []


@pytest.mark.slow
def test_everything_on_the_emulated_device():
    assert [(r.subject, r.case, r.body, r.dtype, r.note) for r in run("emulated").failed] == []


@pytest.mark.gpu
def test_everything_on_a_gpu():
    assert [(r.subject, r.case, r.body, r.dtype, r.note) for r in run("cupy").failed] == []


def test_kernels_on_the_emulated_device():
    found = run("emulated", ["layernorm"], quick=True)
    assert not found.failed
    assert ("cuda on emulated", "float32") in {(r.body, r.dtype) for r in found.rows}
    assert found.machine["device"].startswith("emulated on ")
    assert found.machine["compute capability"] == "7.5"


def test_a_fault_in_a_kernel_fails_its_row(monkeypatch):
    launch = module.launch

    def dropped_threads(source, function, grid, block, args, **options):
        launch(source, function, (grid[0] - 1,), block, args, **options)

    monkeypatch.setattr(module, "launch", dropped_threads)
    found = run("emulated", ["layernorm"], quick=True)
    assert {r.body for r in found.failed} == {"cuda on emulated"}


def test_an_error_of_the_emulator_is_a_failed_row(monkeypatch):
    launch = module.launch

    def too_many_rows(source, function, grid, block, args, **options):
        args = (*args[:-2], np.int64(args[-2] + 9), args[-1])
        launch(source, function, (grid[0] + 9,), block, args, **options)

    monkeypatch.setattr(module, "launch", too_many_rows)
    found = run("emulated", ["layernorm"], quick=True)
    assert {r.body for r in found.failed} == {"cuda on emulated"}
    assert any(r.note.startswith("OutOfBounds: layernorm") for r in found.failed)


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownName, match="no op or layer is called 'GTP'; did you mean GPT"):
        run("numpy", ["GTP"])


def test_no_compiler_is_one_sentence(monkeypatch):
    def missing(backend):
        raise ToolkitMissing("The emulated device needs NVRTC, which is not installed: pip install it")

    monkeypatch.setattr(certificate, "use", missing)
    with pytest.raises(GPUUnavailable, match=r"^The emulated device needs NVRTC.*: pip install it$"):
        run("emulated", ["relu"])


# ------------------------------------------------------------------------------------------------- as text


def test_the_table_shows_the_worst_of_each():
    rows = [row(error=1e-8), row(case="V 1", error=1e-6), row(body="reference", error=0.0), row(case="D 1")]
    lines = table(rows).splitlines()
    assert lines[0].split() == ["op", "case", "body", "dtype", "worst", "error", "tolerance"]
    assert len(lines) == 3
    assert lines[1].split() == ["relu", "V", "1", "(worst", "of", "3)", "cpu", "float32", "1.0e-06", "2.0e-06", "pass"]
    assert lines[2].split() == ["relu", "D", "5", "reference", "float32", "0.0e+00", "2.0e-06", "pass"]
    assert len(table(rows, every=True).splitlines()) == 5


def test_the_table_shows_every_failure():
    rows = [
        row(),
        row(False, case="V 1", error=1e-3),
        row(False, case="V 7", error=float("nan"), tolerance=0.0, note="Wrong: so"),
    ]
    lines = table(rows).splitlines()
    assert lines[1].split() == ["relu", "V", "1", "cpu", "float32", "1.0e-03", "2.0e-06", "FAIL"]
    assert lines[2].split() == ["relu", "V", "7", "cpu", "float32", "-", "-", "FAIL", "Wrong:", "so"]
    assert len(lines) == 3


def test_the_verdict_is_the_last_line():
    good = Certificate("numpy", False, {"device": "A"}, [row(), row(kind="layer", subject="ReLU")], 3.4)
    assert summary(good).splitlines()[0].split() == ["device", "A"]
    assert summary(good).splitlines()[-1] == "2 checks of 2 ops and layers in 3 s: all passed"
    bad = Certificate("numpy", False, {}, [row(), row(False), row(False, subject="gelu")], 3.4)
    assert summary(bad).splitlines()[-1] == "3 checks of 2 ops and layers in 3 s: 2 FAILED, in gelu, relu"
    quick = Certificate("numpy", True, {}, [row()], 3.4)
    assert summary(quick).endswith("all passed (quick: float32 alone, without the large cases)")


def test_json():
    rows = [row(), row(False, error=float("inf")), row(False, error=float("nan"), note="why")]
    content = json.loads(to_json(Certificate("numpy", False, {"device": "A"}, rows, 1.0)))
    assert content["checks"] == 3
    assert content["failed"] == 2
    assert content["machine"] == {"device": "A"}
    assert [r["error"] for r in content["rows"]] == [1e-7, None, None]
    assert content["rows"][2]["note"] == "why"
    assert content["tolerances"]["float32"] == 2e-6


def test_cuda_version():
    assert cuda_version(13020) == "13.2"
    assert cuda_version(12000) == "12.0"


def test_the_processor_has_a_name(monkeypatch):
    assert cpu_model()

    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr(certificate.Path, "read_text", refused)
    assert cpu_model()


def test_processes_share_the_cases_out_and_change_no_row():
    one, two = (run("numpy", ["Linear", "relu", "layernorm"], quick=True, jobs=jobs) for jobs in (1, 2))
    assert len(one.rows) > 20
    assert [repr(row) for row in two.rows] == [repr(row) for row in one.rows]  # NaN is not NaN
