"""`mpiexec -n N gpulayers train --data-parallel`: the run of one process, whatever becomes of its ranks."""

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import command, each, needs_mpi, run
from tiny_run import last_checkpoint, lines, words

from gpulayers.cli import main
from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.parallel import Alone
from gpulayers.storage import load_tensors
from gpulayers.training import loop
from gpulayers.training.agree import settings, threads_of_rank
from gpulayers.training.config import available_cores

PROGRAM = Path(__file__).parent / "train_program.py"
pytestmark = needs_mpi


RUN = {"dtype": "float64", "clip": 0.5, "sample_every": 4}


@pytest.fixture(scope="module", autouse=True)
def _no_picture():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "plot_loss", lambda *_, **__: None)  # which takes longer than all steps
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of one process, in float64, from the first step to the last."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert main(words(folder, **RUN)) == 0
    return folder


def ranks(size, *arguments, happens=(0, 0, "nothing")):
    """The command on `size` ranks, with what happens to one of them after a step: (rank, step, what)."""
    return run(command(size, PROGRAM, *happens, *arguments))


def assert_same_to_rounding(a, b):
    """Metrics to 1e-12, samples to the letter, the last tensors to what Adam leaves of that."""
    assert last_checkpoint(a).name == last_checkpoint(b).name
    mine, theirs = lines(a / "metrics.jsonl"), lines(b / "metrics.jsonl")
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert other == pytest.approx(one, rel=1e-12, abs=0)
    assert lines(a / "samples.jsonl") == lines(b / "samples.jsonl")
    for name in (last_checkpoint(a).name, "checkpoint-best.safetensors"):
        left, right = load_tensors(a / name)[0], load_tensors(b / name)[0]
        assert left.keys() == right.keys()
        for key in left:
            assert np.allclose(left[key], right[key], rtol=1e-9, atol=1e-11), (name, key)


def test_one_two_three_and_one_rank_after_the_other(straight, tmp_path, capfd):
    """Each stops early in its own way, and the next goes on; 5 samples in 2 parts, so the ranks' pieces differ."""
    out = tmp_path / "run"
    assert main(words(out, **RUN, data=straight.parent / "beer.txt", steps=4, schedule_steps=12)) == 0
    resume = ("train", "--resume", out, "--data-parallel")

    two = ranks(2, *resume, "--steps", "12", happens=(1, 6, "SIGTERM"))
    assert two.returncode == 143, two.stderr
    assert two.stderr.count(f"going on with {out} at step 4 of 12, on 2 ranks") == 1
    assert two.stderr.count(f"stopped at step 6, saved; gpulayers train --resume {out} goes on") == 1
    assert last_checkpoint(out).name == "checkpoint-00000006.safetensors"
    assert json.loads(load_tensors(last_checkpoint(out))[1]["ranks"]) == 2

    three = ranks(3, *resume, happens=(2, 9, "SIGKILL"))
    assert three.returncode not in (0, 2)
    assert "EXIT CODE: 9" in three.stdout + three.stderr
    assert last_checkpoint(out).name == "checkpoint-00000008.safetensors"

    assert main([str(word) for word in resume[:-1]]) == 0
    assert_same_to_rounding(straight, out)


def test_a_rank_that_fails_ends_all(straight, tmp_path, capfd):
    out = tmp_path / "run"
    begun, arguments = time.monotonic(), words(out, **RUN, data=straight.parent / "beer.txt")
    failed = ranks(2, *arguments, "--data-parallel", happens=(1, 5, "raise"))
    assert failed.returncode == 1
    assert "RuntimeError: a fault of the program" in failed.stderr
    assert "rank 1 ends all 2 ranks" in failed.stderr
    assert time.monotonic() - begun < 30
    assert last_checkpoint(out).name == "checkpoint-00000004.safetensors"
    assert main(["train", "--resume", str(out)]) == 0
    assert_same_to_rounding(straight, out)


@pytest.mark.slow
def test_ctrl_c_and_a_full_disk_on_the_first_rank(straight, tmp_path, capfd):
    out = tmp_path / "run"
    arguments = words(out, **RUN, data=straight.parent / "beer.txt")
    stopped = ranks(3, *arguments, "--data-parallel", happens=(0, 3, "SIGINT"))
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.count("stopping after this step") == 1
    assert stopped.stderr.count("stopped at step 3, saved") == 1
    assert last_checkpoint(out).name == "checkpoint-00000003.safetensors"

    resume = ("train", "--resume", out, "--data-parallel")
    full = ranks(2, *resume, happens=(0, 8, "full"))
    assert full.returncode == 2
    assert f"gpulayers: error: cannot write {out}/metrics.jsonl: No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    assert main([str(word) for word in resume[:-1]]) == 0
    assert_same_to_rounding(straight, out)


def test_ranks_with_other_settings_are_told_so_once(straight, tmp_path):
    out = tmp_path / "run"
    arguments = ["-m", "gpulayers.cli", *words(out, data=straight.parent / "beer.txt"), "--data-parallel", "--lr"]
    done = run(each([*arguments, "0.25"], [*arguments, "0.5"]))
    assert done.returncode == 2
    says = "rank 1 has [optimizer] lr 0.5 and rank 0 0.25: all ranks take the same versions, options and data"
    assert done.stderr == f"gpulayers: error: {says}\n"
    assert not out.exists()


def test_the_program_of_the_page(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "program.py"
    script.write_text(program.replace("range(20)", "range(2)"), encoding="utf-8")
    done = run(command(2, script))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"0 5\.\d+\n1 5\.\d+\n", done.stdout)  # from one rank alone


# ---------------------------------------------------------------------------------------------------- one process


def test_threads_may_differ_between_ranks_and_share_out_the_cores():
    parser = Parser(prog="gpulayers")
    add_parser(parser.add_subparsers(), ["gpt"])
    config = config_from(parser.parse_args(["train"])).complete()
    compared = settings(config)
    assert "[training] threads" not in compared
    assert {"[model] dim", "[optimizer] lr", "[training] seed", "[data] tokens", "task"} <= set(compared)

    class Ranks(Alone):
        def __init__(self, texts, local_size):
            super().__init__()
            self.texts, self.local_size = texts, local_size

        def gather_texts(self, text):
            machine, _, _ = text.rpartition(" ")
            return [text, *(f"{machine} {own}" if own else text for own in self.texts), "another 0,1,2"]

    cores = available_cores()
    assert threads_of_rank(Alone()) == cores
    assert threads_of_rank(Ranks([""], 2)) == max(1, cores // 2)
    assert threads_of_rank(Ranks(["7"], 2)) == cores  # bound to cores of its own
    assert threads_of_rank(Ranks([""] * 999, 1000)) == 1


def test_a_profile_is_of_one_process(capfd):
    assert main(["profile", "events", "--", "train", "--tiny", "--data-parallel"]) == 2
    assert "--data-parallel cannot be profiled so" in capfd.readouterr().err


def test_without_mpiexec_it_is_one_rank(straight, tmp_path, capfd):
    out = tmp_path / "run"
    arguments = words(out, **RUN, data=straight.parent / "beer.txt")
    assert main([*arguments, "--data-parallel"]) == 0
    assert "ranks" not in capfd.readouterr().err
    assert lines(out / "metrics.jsonl") == lines(straight / "metrics.jsonl")
    assert all(math.isfinite(record["loss"]) for record in lines(out / "metrics.jsonl"))
