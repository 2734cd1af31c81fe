"""`--schedule plateau`: the validation loss decides the rate, also in a run that was stopped and resumed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_run import assert_same_run, lines, words

from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.optim import Plateau
from gpulayers.training import loop
from gpulayers.training.options import ConfigError
from gpulayers.training.run import resume, start

# The loss does not get better by a ten-thousandth at such a rate, so the rate falls whenever patience is over.
STILL = {"schedule": "plateau", "lr": 1e-12, "warmup": 0, "eval_every": 2, "sample_every": 0, "lr_final": 0.02}


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


def begin(out, **options):
    parser = Parser(prog="gpulayers")
    arguments = words(out, **(STILL | options))
    add_parser(parser.add_subparsers(), arguments[1:])
    return start(config_from(parser.parse_args(arguments)), out)


def rates(folder):
    return [record["lr"] for record in lines(folder / "metrics.jsonl")]


def test_the_rate_falls_after_patience_and_not_below_its_least(tmp_path):
    begin(tmp_path / "run", lr_patience=0, lr_gamma=0.1).run()
    assert rates(tmp_path / "run") == pytest.approx([1e-12] * 4 + [1e-13] * 2 + [2e-14] * 6)
    begin(tmp_path / "patient", lr_patience=1, lr_gamma=0.5).run()
    assert rates(tmp_path / "patient") == pytest.approx([1e-12] * 6 + [5e-13] * 4 + [2.5e-13] * 2)


def test_a_falling_loss_keeps_the_rate(tmp_path):
    begin(tmp_path / "run", lr=1e-2, lr_patience=0, steps=6).run()
    assert rates(tmp_path / "run") == [1e-2] * 6


@pytest.mark.parametrize("step", [3, 6, 8])
def test_resumed_it_is_the_run_that_never_stopped(step, tmp_path):
    """Between two measurements, right at one where the rate falls, and after it: the state is in the checkpoint."""
    begin(tmp_path / "straight", save_every=1).run()
    begin(tmp_path / "stopped", save_every=1, steps=step).run()
    resume(tmp_path / "stopped", steps=12).run()
    stopped, straight = lines(tmp_path / "stopped" / "metrics.jsonl"), lines(tmp_path / "straight" / "metrics.jsonl")
    if step % 2 == 0:  # a run's last step is measured in any case: only then nothing more was written down
        assert_same_run(tmp_path / "straight", tmp_path / "stopped")
    assert [one["lr"] for one in stopped] == [one["lr"] for one in straight]
    assert [one["loss"] for one in stopped] == [one["loss"] for one in straight]
    assert stopped[: step - 1] == straight[: step - 1]


def test_killed_between_two_measurements(tmp_path):
    """Gone on from the last checkpoint, as after a crash."""
    begin(tmp_path / "straight", save_every=1).run()
    trainer = begin(tmp_path / "killed", save_every=1)
    with trainer._outputs():
        trainer.threads = None
        for _ in range(7):
            trainer._advance()
    resume(tmp_path / "killed").run()
    assert_same_run(tmp_path / "straight", tmp_path / "killed")


def test_all_ranks_hear_the_loss_of_the_first():
    """A follower measures nothing."""

    class Heard:
        size = 2

        def broadcast(self, array):
            assert math.isnan(array[0])
            array[0] = 0.5

    trainer = SimpleNamespace(optimizer=SimpleNamespace(schedule=Plateau(patience=0)))
    trainer.ranks = SimpleNamespace(size=2, communicator=Heard())
    for _ in range(2):
        loop.Trainer._tell_schedule(trainer, math.nan)
    assert trainer.optimizer.schedule.state.tolist() == [0.1, 0.5, 0, 0]


def test_a_factor_that_changes_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the plateau schedule takes an lr_gamma below 1, for it would never fall"):
        begin(tmp_path / "run", lr_gamma=1)
    with pytest.raises(ConfigError, match="the plateau schedule listens to the measurements of eval_every, which must"):
        begin(tmp_path / "run", eval_every=0)


def test_a_state_is_four_numbers():
    plateau = Plateau()
    plateau.update(np.float32(2))
    plateau.update(math.nan)
    assert plateau.state.tolist() == [1, 2, 1, 0]
