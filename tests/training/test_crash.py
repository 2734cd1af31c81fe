"""Killed by SIGKILL at random instants and resumed, a run ends as the one that nobody killed, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_run import assert_same_run, words

from gpulayers.cli import main
from gpulayers.training import loop
from gpulayers.training.run import resume

TOP = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes that can be forked and killed")


def campaign(*options: str) -> str:
    command = [sys.executable, "-m", "tests.crash", *options]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=TOP, env=one_thread, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_at_a_few_random_instants():
    assert "is as never killed" in campaign("--kills", "5", "--forms", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--kills", "200"], ["--kills", "20", "--pictures"], ["--kills", "20", "--backend", "emulated"]]
)
def test_killed_at_200_random_instants(options):
    assert "is as never killed" in campaign(*options)


# Kills itself in the first save, as a file is flushed for the second time: config.toml is there, step 0 is not.
KILLED = """
import os, sys
from gpulayers.cli import main
flushed = []
def fsync(descriptor):
    flushed.append(descriptor)
    if len(flushed) == 2:
        os.kill(os.getpid(), 9)
os.fsync = fsync
sys.exit(main(sys.argv[1:]))
"""


def test_killed_in_the_first_save_it_simply_starts_again(tmp_path, capfd):
    out, arguments = tmp_path / "run", words(tmp_path / "run")
    assert subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -9
    assert not out.exists()
    left = [path.name for path in tmp_path.glob(".*")]
    assert len(left) == 1
    assert left[0].startswith(".run.")
    assert main(["train", "--resume", str(out)]) == 2
    assert "run does not exist" in capfd.readouterr().err
    assert main(arguments) == 0
    assert not list(tmp_path.glob(".*"))
    assert main(words(tmp_path / "straight")) == 0
    assert_same_run(tmp_path / "straight", out)


def test_a_folder_without_step_0_says_what_to_do(tmp_path, capfd):
    """As versions before left one that were killed in the first save."""
    out = tmp_path / "run"
    assert main(words(out, steps=0)) == 0
    (out / "checkpoint-00000000.safetensors").unlink()
    (out / "checkpoint-best.safetensors").unlink(missing_ok=True)
    capfd.readouterr()
    assert main(["train", "--resume", str(out)]) == 2
    sentence = capfd.readouterr().err
    assert f"{out} holds no checkpoint: start again in another folder with its settings: " in sentence
    assert main(["train", "--config", str(out / "config.toml"), "--out", str(tmp_path / "again")]) == 0


def test_the_line_of_a_step_is_there_before_a_checkpoint_of_it(tmp_path, monkeypatch):
    """Also the best one's, so that a run can go on from that when all others are broken."""
    seen = []

    def saved(name):
        save = getattr(loop, name)

        def look(folder, step, *rest):
            records = (folder / "metrics.jsonl").read_text().splitlines() if step else []
            seen.append((name, step, [json.loads(record)["step"] for record in records][-1:]))
            return save(folder, step, *rest)

        monkeypatch.setattr(loop, name, look)

    saved("save_best")
    saved("save_checkpoint")
    main(words(tmp_path / "straight"))
    assert all(last == [step] for _, step, last in seen if step)
    assert {name for name, step, _ in seen if step} == {"save_best", "save_checkpoint"}
    for path in (tmp_path / "straight").glob("checkpoint-0*"):
        path.write_bytes(path.read_bytes()[:-1])
    said: list[str] = []
    trainer = resume(tmp_path / "straight", steps=13, warn=said.append)
    assert len(said) == 3
    assert trainer.step in (4, 8, 12)
    trainer.run()
    steps = [json.loads(line)["step"] for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 14))
