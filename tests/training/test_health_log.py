"""`train --health`: its files, its lines, and that a watched run is the run that nobody watches, bit for bit."""

import json
import re

import pytest
from tiny_run import assert_same_run, lines, words

from gpulayers.cli import main
from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.training import health_log, loop
from gpulayers.training.health import rows_of
from gpulayers.training.loop import TrainingError
from gpulayers.training.run import resume, start


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)
    monkeypatch.setattr(health_log, "plot_health", lambda *_, **__: None)


def begin(out, *flags, **options):
    """A trainer at step 0."""
    parser = Parser(prog="gpulayers")
    arguments = [*words(out, **options), *flags]
    add_parser(parser.add_subparsers(), arguments[1:])
    return start(config_from(parser.parse_args(arguments)), out)


def watched(out, **options):
    return begin(out, "--health", **({"health_every": 3} | options))


def test_a_watched_run_is_the_same_run(tmp_path):
    begin(tmp_path / "a").run()
    watched(tmp_path / "b").run()
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "a" / "health.jsonl").exists()
    records = lines(tmp_path / "b" / "health.jsonl")
    assert [record["step"] for record in records] == [1, 4, 7, 10]
    assert list(rows_of(records[0])) == ["wte", "blocks.0", "ln_f", "head"]
    assert all(
        record["layers"]["blocks.0"].keys() == {"gradient", "activation", "dead", "update"} for record in records
    )


@pytest.mark.parametrize("stop", [3, 4])
def test_stopped_and_resumed_is_as_never_stopped(stop, tmp_path):
    watched(tmp_path / "a").run()
    trainer = watched(tmp_path / "b")
    for line in ("metrics", "samples", "health"):
        (tmp_path / "b" / f"{line}.jsonl").touch()
    advance = trainer._advance

    def stopping():
        advance()
        if trainer.step == stop:
            raise KeyboardInterrupt

    trainer._advance = stopping
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    again = resume(tmp_path / "b")
    assert again.config.training.health
    assert again.step == stop // 2 * 2  # a checkpoint every second step
    again.run()
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert lines(tmp_path / "a" / "health.jsonl") == lines(tmp_path / "b" / "health.jsonl")


def test_a_sick_run_says_so_in_one_line(tmp_path, capsys):
    watched(tmp_path / "run", optimizer="sgd", lr=30, warmup=0, clip=0, steps=4, health_every=1).run()
    said = [
        line for line in capsys.readouterr().err.splitlines() if re.match(r"step \d+: (exploding|not finite)", line)
    ]
    assert len(said) == 1
    assert re.search(r"from \S+ on: .* above 1e\+03", said[0])


def test_a_step_that_is_not_finite_names_the_first_sick_layer(tmp_path, capsys):
    trainer = watched(tmp_path / "run", steps=4)
    trainer.task.model.blocks[0].feedforward.down.weight.data[0, 0] = float("nan")
    with pytest.raises(
        TrainingError, match=r"up to step 3 \(not finite from blocks\.0 on: an activation is NaN or infi"
    ):
        trainer.run()
    said = capsys.readouterr().err
    assert len(re.findall("step 1: ", said)) == 1
    assert "step 2: the loss is not finite (not finite from blocks.0 on: an activation is NaN or infinite); the" in said
    assert [record["layers"]["blocks.0"]["activation"] for record in lines(tmp_path / "run" / "health.jsonl")] == [None]


def test_without_health_the_last_word_names_it(tmp_path):
    trainer = begin(tmp_path / "run", steps=4)
    trainer.task.model.blocks[0].feedforward.down.weight.data[0, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"in 3 steps in a row, up to step 3 \(not finite from blocks\.0 on"):
        trainer.run()


def test_looking_at_a_skipped_step_again_leaves_nothing(tmp_path):
    trainer = begin(tmp_path / "run")
    before = trainer.tensors()
    sick = health_log.diagnose(trainer.task, trainer.optimizer, 0, 0)
    assert sick is None
    assert all(before[name].tobytes() == tensor.tobytes() for name, tensor in trainer.tensors().items())
    assert not any(p.grad.any() for p in trainer.task.model.parameters())


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    out = tmp_path / "run"
    assert main([*words(out, steps=3, health_every=2), "--health"]) == 0
    assert (out / "health.png").read_bytes().startswith(b"\x89PNG")
    assert [json.loads(line)["step"] for line in (out / "health.jsonl").read_text().splitlines()] == [1, 3]
    for way in ([*words(tmp_path / "other"), "--health"], ["train", "--resume", str(out), "--steps", "4"]):
        assert main([*way, "--trace", str(tmp_path / "trace.json")]) == 2
        assert "--trace and --health listen to the same calls: choose one of them" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
