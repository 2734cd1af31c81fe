import json

import pytest

from gpulayers.cli import doctor, main
from gpulayers.doctor import Finding, Status

GOOD = [Finding("driver", Status.OK, "CUDA 13.0"), Finding("profiler", Status.WARN, "only root", "sudo so")]
BAD = [
    *GOOD,
    Finding("cupy", Status.FAIL, "CuPy is not installed", "pip install it"),
    Finding("device", Status.SKIPPED, "no CuPy"),
]


@pytest.fixture
def findings(monkeypatch):
    def put(values):
        monkeypatch.setattr(doctor, "diagnose", lambda: iter(values))

    return put


def test_nothing_to_mend(findings, capfd):
    findings(GOOD)
    assert main(["doctor"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "driver        ok       CUDA 13.0",
        "profiler      warn     only root",
        "              -> sudo so",
        "",
        "nothing stands between this machine and the GPU",
    ]


def test_something_to_mend(findings, capfd):
    findings(BAD)
    assert main(["doctor"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[3:5] == ["cupy          fail     CuPy is not installed", "              -> pip install it"]
    assert lines[5] == "device        skipped  no CuPy"
    assert lines[-1] == "to mend before the GPU can be used, from the top: cupy"


@pytest.mark.parametrize(("values", "gpu"), [(GOOD, True), (BAD, False)])
def test_json(values, gpu, findings, capfd):
    findings(values)
    assert main(["doctor", "--json"]) == (not gpu)
    content = json.loads(capfd.readouterr().out)
    assert content["gpu"] is gpu
    assert content["checks"][1] == {"check": "profiler", "status": "warn", "found": "only root", "remedy": "sudo so"}
    assert len(content["checks"]) == len(values)


def test_unknown_option_is_one_sentence(capfd):
    assert main(["doctor", "--jsn"]) == 2
    assert capfd.readouterr().err == "gpulayers: error: unknown option --jsn; did you mean --json?\n"
