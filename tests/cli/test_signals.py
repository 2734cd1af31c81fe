"""Runs in processes of their own, stopped in different ways, against one that was never stopped."""

import os
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

# Says nothing before the loop, so that the first write is in it.
SILENT = """
import sys
from gpulayers.cli import main, train
train.say = lambda text: None
sys.exit(main(sys.argv[1:]))
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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no broken pipe")
@pytest.mark.parametrize(("stream", "saved"), [("stdout", 3), ("stderr", 4)])
def test_a_run_whose_reader_leaves_is_saved(stream, saved, straight, tmp_path, capfd):
    out = tmp_path / "run"
    arguments = words(out, data=straight.parent / "beer.txt", save_every=0)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: pipe}
        command = [sys.executable, "-c", SILENT, *arguments]
        assert subprocess.run(command, **streams, timeout=60, check=False).returncode == 141
    assert last_checkpoint(out).name == f"checkpoint-{saved:08d}.safetensors"  # where it first wrote to the stream
    assert main(["train", "--resume", str(out)]) == 0
    assert_same_run(straight, out)


@pytest.mark.skipif(sys.platform == "win32", reason="no bash")
def test_closed_streams_do_not_matter(straight, tmp_path):
    arguments = words(tmp_path / "run", data=straight.parent / "beer.txt")
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-m", "gpulayers.cli", *arguments]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert_same_run(straight, tmp_path / "run")  # nothing that was printed went into a file


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_to_a_full_disk(straight):
    command = f"{sys.executable} -m gpulayers.cli generate {straight} --tokens 4 --threads 1 >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "gpulayers: error: No space left on device: the output\n")


# Sends itself the signal while the first checkpoint is flushed.
STOPPED_EARLY = """
import os, signal, sys
from gpulayers.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where a shell runs the tests in the background
os.fsync = lambda descriptor: os.kill(os.getpid(), int(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no exit status by signal")
@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_stopped_in_the_first_save_leaves_no_folder(number, status, straight, tmp_path):
    arguments = words(tmp_path / "run", data=straight.parent / "beer.txt")
    command = [sys.executable, "-c", STOPPED_EARLY, str(int(signal.Signals[number])), *arguments]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (stopped.returncode, stopped.stderr) == (status, "")
    assert not (tmp_path / "run").exists()
