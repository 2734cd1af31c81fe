"""docs/attention.md: its programs print what the page shows under them."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "attention.md"
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run():
    """What each program prints; they run one after the other in one process."""
    program = "\nprint('=====')\n".join(blocks("python"))
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("=====\n")


def numbers(line):
    """Errors above 1 stand for "nothing was learned": such a run amplifies the last digit of the machine."""
    found = np.array([float(number) for number in NUMBER.findall(line)])
    return np.minimum(found, 1) if line.startswith("offset") else found


def test_every_number_on_the_page():
    printed, shown = run(), blocks("text")
    assert len(printed) == len(shown)
    for found, wanted in zip("".join(printed).splitlines(), "".join(shown).splitlines(), strict=True):
        assert NUMBER.sub("#", found).split() == NUMBER.sub("#", wanted).split()
        drawn = wanted.startswith(("offset", "scale", "head_dim"))  # means over something random, with two digits
        np.testing.assert_allclose(numbers(found), numbers(wanted), rtol=0.1 if drawn else 1e-6, atol=0.02 * drawn)


def test_what_the_page_says_about_them():
    text = "".join(blocks("text"))
    rows = {
        (int(offset), name): [float(error) for error in errors.split()]
        for offset, name, errors in re.findall(r"offset +(\d+)  (\w+) \w+ +(.*)", text)
    }
    assert rows[0, "whole"] == rows[3, "whole"] == rows[10, "whole"]  # the whole Jacobian does not see the offset
    assert min(rows[0, "diagonal"]) < 0.1 < 0.3 < min(rows[10, "diagonal"])
    before, after = (
        [float(error) for error in errors.split()] for errors in re.findall(r"^scale \w+ +(.*)", text, re.MULTILINE)
    )
    assert min(after) >= 10 * min(before)
