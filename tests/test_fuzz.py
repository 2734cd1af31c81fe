"""A few thousand of the inputs of `python -m tests.fuzz`; a million of them were fed by that command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes that can be forked")
def test_mutated_files_are_read_or_refused_with_one_sentence():
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "3000", "--seed", "1"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=one_thread, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3,000 inputs: each was read or refused with one sentence" in done.stdout
