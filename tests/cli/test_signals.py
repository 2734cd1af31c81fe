"""Runs in processes of their own, stopped in different ways, against one that was never stopped."""

import signal
import subprocess
import sys

import pytest
from tiny_run import assert_same_run, last_checkpoint, words

from gpulayers.cli import main

# Sends itself the signal after step 5, where the last checkpoint is that of step 4.
STOPPED = """
import os, sys
from gpulayers.cli import main
from gpulayers.training.loop import Trainer
advance = Trainer._advance
def and_signal(self):
    advance(self)
    if self.step == 5:
        os.kill(os.getpid(), int(sys.argv[1]))
Trainer._advance = and_signal
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert main(words(folder)) == 0
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither SIGKILL nor an exit status by signal")
@pytest.mark.parametrize(
    ("number", "status", "saved"),
    [("SIGINT", 130, 5), ("SIGTERM", 143, 5), ("SIGKILL", -9, 4)],
)
def test_stopped_and_resumed_is_as_never_stopped(number, status, saved, straight, tmp_path, capfd):
    out = tmp_path / "run"
    arguments = words(out, data=straight.parent / "beer.txt")
    command = [sys.executable, "-c", STOPPED, str(int(signal.Signals[number])), *arguments]
    stopped = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert stopped.returncode == status, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert last_checkpoint(out).name == f"checkpoint-{saved:08d}.safetensors"
    if number != "SIGKILL":
        assert f"stopped at step 5, saved; gpulayers train --resume {out} goes on" in stopped.stderr
    assert main(["train", "--resume", str(out)]) == 0
    assert_same_run(straight, out)


def test_the_reader_of_a_pipe_leaves(straight):
    command = f"{sys.executable} -m gpulayers.cli generate {straight} --tokens 400 --threads 1 | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command + "; exit ${PIPESTATUS[0]}"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 141
    assert done.stderr == b""
