"""docs/activations.md: its programs print what the page shows under them; the table leaves no activation out."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.layers.activation import Activation

PAGE = (Path(__file__).parents[1] / "docs" / "activations.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
TABLE = PAGE.partition("## What there is")[2].partition("## Where pieces meet")[0]


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_every_number_on_the_page():
    command = [sys.executable, "-W", "error", "-c", "\n".join(blocks("python"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    shown = "".join(blocks("text"))
    assert NUMBER.sub("#", result.stdout).split() == NUMBER.sub("#", shown).split()
    found, wanted = ([float(number) for number in NUMBER.findall(text)] for text in (result.stdout, shown))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_table_has_every_activation():
    told = set(re.findall(r"^\| `(\w+)\(.*?\)` \|", TABLE, re.MULTILINE))
    family = {name for name, kind in vars(gl).items() if isinstance(kind, type) and issubclass(kind, Activation)}
    others = {"ReLU", "LeakyReLU", "PReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softmin"}
    assert told == family | others | {"GLU", "GEGLU", "SwiGLU"}


def test_the_table_has_the_defaults():
    for name, arguments in re.findall(r"^\| `(\w+)\((.*?=.*?)\)` \|", TABLE, re.MULTILINE):
        layer = getattr(gl, name)()
        for argument in arguments.split(", "):
            word, _, value = argument.partition("=")
            if word != "init":
                assert str(getattr(layer, word)).removesuffix(".0") == value.strip('"'), (name, word)


def test_far_out():
    x = np.array([20, -20, -1e-6], np.float32)
    assert gl.LogSigmoid()(x)[0] == pytest.approx(-2.0611537e-9, rel=1e-6)
    assert gl.Softplus()(x)[1] == pytest.approx(2.0611537e-9, rel=1e-6)
    assert gl.ELU()(x)[2] == pytest.approx(-1e-6, rel=1e-6)
    assert gl.Softplus(threshold=1000)(np.array([100], np.float32)) == 100
