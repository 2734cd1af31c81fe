"""docs/recurrent.md: a program with a text under it prints that text."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "recurrent.md"
PROGRAM = re.compile(r"```python\n((?:(?!```).)*)```\n```text\n(.*?)```", re.DOTALL)


def test_what_the_programs_print():
    """One process: they go on with each other's names."""
    pairs = PROGRAM.findall(PAGE.read_text(encoding="utf-8"))
    assert pairs
    program = "\nprint('=====')\n".join(code for code, _ in pairs)
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("=====\n") == [text for _, text in pairs]
