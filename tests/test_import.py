"""`import gpulayers`: what it offers, and what it does not bring along."""

import subprocess
import sys

import pytest

import gpulayers as gl


def test_every_name_is_there():
    for name in [*gl.__all__, *gl.LATER_MODULES]:
        assert getattr(gl, name) is not None
    assert set(gl.__all__) <= set(dir(gl))
    assert sorted(name for names in gl.LATER.values() for name in names if name not in gl.__all__) == []


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match="module 'gpulayers' has no attribute 'convolution'"):
        gl.convolution  # noqa: B018 the access is the test


def test_what_takes_long_comes_when_it_is_asked_for():
    """Whole models, commands, and the libraries that only these need."""
    late = ["gpulayers.models", "gpulayers.training", "gpulayers.cli", "tqdm", "matplotlib", "jinja2", "statistics"]
    code = f"import sys, gpulayers; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
