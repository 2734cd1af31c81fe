"""docs/optimizers.md says what the signatures say, and leaves none out."""

import inspect
import re
from pathlib import Path

import pytest

from gpulayers import initialize
from gpulayers.optim import OPTIMIZERS, SCHEDULES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "optimizers.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)\((.*)\)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_defaults(kind):
    found = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("model", "options") or name.startswith("adamw"):
            continue
        found.append(name if parameter.default is parameter.empty else f"{name}={parameter.default}")
    assert ROWS[kind.__name__] == ", ".join(found)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    for option, parameter in inspect.signature(SCHEDULES[name]).parameters.items():
        if option not in ("steps", "warmup"):
            assert option in row
            if parameter.default is not None and not isinstance(parameter.default, str):
                assert f"{option}={parameter.default:g}".replace("=10000", "=1e4") in row or parameter.default is False


def test_initialisers():
    ours = {
        name
        for name, value in vars(initialize).items()
        if inspect.isfunction(value) and {"shape", "rng"} <= inspect.signature(value).parameters.keys()
    }
    assert {name for name in ours if f"`{name}`" not in PAGE} == {"fan_in_uniform", "he_uniform", "he_normal"} | {
        name for name in ours if name.startswith("glorot")
    }
