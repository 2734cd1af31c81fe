"""docs/losses.md: its programs print what the page shows under them; the table of functions leaves none out."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import gpulayers as gl

PAGE = (Path(__file__).parents[1] / "docs" / "losses.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


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


def test_the_table_has_every_loss():
    losses = {name for name in gl.__all__ if "cross_entropy" in name or name.endswith("_loss") or name == "kl_div"}
    table = PAGE.partition("## What there is")[2].partition("## Means")[0]
    assert losses == set(re.findall(r"`(\w+)(?:\(.*?\))?`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
