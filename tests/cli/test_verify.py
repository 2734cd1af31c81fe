import json
import sys

import numpy as np
import pytest

from gpulayers.cli import main
from gpulayers.cuda import import_cupy
from gpulayers.ops import relu as module


def test_a_pass(capfd, tmp_path):
    path = tmp_path / "certificate.json"
    assert main(["verify", "relu", "ReLU", "--json", str(path)]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].endswith("all passed")
    assert "FAIL" not in out
    assert err == ""  # no bar where there is no terminal
    content = json.loads(path.read_text())
    assert content["failed"] == 0
    assert {r["subject"] for r in content["rows"]} == {"relu", "relu_backward", "ReLU"}


@pytest.fixture
def planted(monkeypatch):
    """The CPU body of relu forgets the last column of every array."""

    def faulty(x):
        y = np.maximum(x, 0)
        y[..., -1:] = x[..., -1:]
        return y

    before = module.relu.cpu
    object.__setattr__(module.relu, "cpu", faulty)  # an Op is frozen
    yield
    object.__setattr__(module.relu, "cpu", before)


@pytest.mark.usefixtures("planted")
def test_a_planted_fault_fails_that_row(capfd, tmp_path):
    path = tmp_path / "certificate.json"
    assert main(["verify", "relu", "sigmoid", "--quick", "--json", str(path)]) == 1
    out = capfd.readouterr().out
    failed = [line.split() for line in out.splitlines() if "FAIL " in line + " " and "checks" not in line]
    assert failed
    assert all(words[0] == "relu" and "cpu" in words for words in failed)
    assert out.splitlines()[-1].endswith("FAILED, in relu")
    rows = json.loads(path.read_text())["rows"]
    assert {(r["subject"], r["body"]) for r in rows if not r["passed"]} == {("relu", "cpu")}


def test_a_wrong_gradient_fails(capfd, monkeypatch):
    backward = module.relu_backward.reference
    before = module.relu_backward
    object.__setattr__(before, "reference", lambda dy, y: backward(dy, y) * dy.dtype.type(1.01))
    try:
        assert main(["verify", "relu", "--quick"]) == 1
    finally:
        object.__setattr__(before, "reference", backward)
    assert "backward is not the derivative of forward" in capfd.readouterr().out


def test_every_row(capfd):
    assert main(["verify", "multiply", "--quick", "--every"]) == 0
    assert "worst of" not in capfd.readouterr().out


def sentence(capfd, *words):
    assert main(["verify", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("gpulayers: error: ")
    assert err.count("\n") == 1
    return err


def test_errors_are_one_sentence(capfd, tmp_path):
    assert "no op or layer is called 'layrnorm'; did you mean layernorm?" in sentence(capfd, "layrnorm")
    assert "--backend must be one of numpy, emulated, cupy, got 'numpi'; did you mean numpy?" in sentence(
        capfd, "--backend", "numpi"
    )
    assert f"cannot write {tmp_path}: it is a folder" in sentence(capfd, "relu", "--json", str(tmp_path))
    nowhere = tmp_path / "no" / "file"
    assert "is not a folder that can be written to" in sentence(capfd, "relu", "--json", str(nowhere))


def test_no_gpu_is_one_sentence(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    import_cupy.cache_clear()
    try:
        assert "no GPU can be used because" in sentence(capfd, "relu", "--backend", "cupy")
    finally:
        import_cupy.cache_clear()
