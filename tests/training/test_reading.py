"""What a run on a device fetches from it, and when."""

import numpy as np
import pytest
from devices import on_devices
from tiny_run import assert_same_run, last_checkpoint, lines, words

import gpulayers as gl
from gpulayers.backend import to_numpy
from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.training import health_log, loop
from gpulayers.training.reading import Reading
from gpulayers.training.run import resume, start
from gpulayers.training.tasks import Part

SMALL = {"dim": 8, "context": 4, "batch": 2, "eval_every": 0, "eval_tokens": 4, "sample_every": 0, "save_every": 0}
WAITS = ("get", "item", "tolist", "tobytes", "__float__", "__int__", "__bool__", "__index__")


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


def begin(out, backend="emulated", **options):
    """A trainer at step 0."""
    parser = Parser(prog="gpulayers")
    arguments = words(out, **{**SMALL, "backend": backend, **options})
    add_parser(parser.add_subparsers(), arguments[1:])
    return start(config_from(parser.parse_args(arguments)), out)


@on_devices
def test_the_values_are_those_of_the_moment(device):
    array = gl.use(device).arange(3)
    reading = Reading(array.copy())
    array += 1
    assert reading.wait().tolist() == [0, 1, 2]
    assert Reading(np.arange(3)).wait().tolist() == [0, 1, 2]


def test_a_step_waits_for_the_device_once_and_late(tmp_path, monkeypatch):
    """The emulated device stands for a GPU: every method that would wait is counted."""
    trainer, kind, reads, found = begin(tmp_path / "run", steps=4), gl.use("emulated").ndarray, [], []
    for name in WAITS:
        if hasattr(kind, name):
            monkeypatch.setattr(kind, name, counted(getattr(kind, name), name, reads))
    advance, step = trainer._advance, loop.train_step

    def one():
        reads.clear()
        advance()
        found.append(list(reads))

    def alone(*args):
        *rest, before_update = args
        outcome = step(*rest, lambda: late(before_update))
        assert reads in ([], ["get"])
        return outcome

    def late(before_update):
        assert reads == []  # all passes of this step are queued by now
        assert any(not parameter._grad_is_zero for parameter in trainer.task.model.parameters())
        return before_update()

    monkeypatch.setattr(trainer, "_advance", one)
    monkeypatch.setattr(loop, "train_step", alone)
    trainer.run()
    assert found[:3] == [[], ["get"], ["get"]]  # the last step is measured, and saved
    assert [r["step"] for r in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def counted(method, name, reads):
    def call(*args, **kwargs):
        reads.append(name)
        return method(*args, **kwargs)

    return call


def test_what_is_read_late_is_the_same(tmp_path, monkeypatch):
    options = {"steps": 3, "dropout": 0.0}
    begin(tmp_path / "late", **options).run()
    monkeypatch.setattr(loop.Trainer, "_anything_due", lambda self: True)
    begin(tmp_path / "at_once", **options).run()
    assert_same_run(tmp_path / "late", tmp_path / "at_once")


def test_a_run_stopped_with_a_step_unread_goes_on_as_never_stopped(tmp_path, monkeypatch):
    begin(tmp_path / "straight", steps=3).run()
    trainer = begin(tmp_path / "stopped", steps=3)
    advance = trainer._advance

    def stop_after_2():
        advance()
        if trainer.step == 2:
            trainer.progress.failed = BrokenPipeError()

    monkeypatch.setattr(trainer, "_advance", stop_after_2)
    with pytest.raises(BrokenPipeError):
        trainer.run()
    assert last_checkpoint(tmp_path / "stopped").name == "checkpoint-00000002.safetensors"
    resume(tmp_path / "stopped").run()
    assert_same_run(tmp_path / "straight", tmp_path / "stopped")


@pytest.mark.parametrize(("what", "save_every", "steps"), [("target", 0, 3), ("target", 1, 2), ("id", 0, 2)])
def test_a_bad_target_or_id_is_a_sentence_before_anything_is_saved(what, save_every, steps, tmp_path, monkeypatch):
    """H02 on the way of a run: the loss of a bad target is NaN, and that must not be all that is said."""
    trainer = begin(tmp_path / "run", steps=steps, save_every=save_every)
    parts = trainer.task.parts

    def bad(k):
        for first, (ids,), targets in parts(k):
            if k == 1:
                (ids if what == "id" else targets)[0, 0] = 999
            yield Part(first, (ids,), targets)

    monkeypatch.setattr(trainer.task, "parts", bad)
    with pytest.raises(ValueError, match=rf"{what} .*999.* outside 0\.\.255"):
        trainer.run()
    assert [r["step"] for r in lines(tmp_path / "run" / "metrics.jsonl")] == [1]
    assert last_checkpoint(tmp_path / "run").name == f"checkpoint-{save_every:08d}.safetensors"


def spoilt_in(monkeypatch, trainer, *bad):
    """A weight of the first block is NaN in the passes of these batches, and as ever in all updates."""
    weight, parts = trainer.task.model.blocks[0].feedforward.down.weight, trainer.task.parts

    def spoiling(k):
        was = weight.data[:1, :1].copy()
        if k in bad:
            weight.data[:1, :1] = np.nan
        yield from parts(k)
        weight.data[:1, :1] = was

    monkeypatch.setattr(trainer.task, "parts", spoiling)


@pytest.mark.parametrize("health", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_skipped_step_that_is_read_late_is_looked_at_with_its_own_parameters(health, tmp_path, monkeypatch, capsys):
    """Though the next step has begun, whose passes are run once more: all bits are as if nobody had looked late."""
    seen, diagnose = {}, loop.diagnose

    def look(task, optimizer, seed, k):
        assert not any(buffer._queued for buffer in task.model.buffers())
        seen.setdefault(k, []).append(to_numpy(optimizer.flat.data).tobytes())
        return diagnose(task, optimizer, seed, k)

    monkeypatch.setattr(loop, "diagnose", look)
    monkeypatch.setattr(health_log, "plot_health", lambda *_, **__: None)
    for name in ("late", "at_once"):
        trainer = begin(tmp_path / name, steps=3, accumulate=1)
        if health:
            training = {"health": True, "health_every": 1}
            trainer.config = trainer.config.with_training(**training)
        spoilt_in(monkeypatch, trainer, 1)
        if name == "at_once":
            monkeypatch.setattr(loop.Trainer, "_anything_due", lambda self: True)
        trainer.run()
        said = capsys.readouterr().err
        assert "step 2: the loss is not finite (not finite from blocks.0 on: an activation is NaN" in said
    assert seen.keys() == {1}
    assert all(late == at_once for late, at_once in seen.values())
    assert_same_run(tmp_path / "late", tmp_path / "at_once")
    records = lines(tmp_path / "late" / "metrics.jsonl")
    assert [record["step"] for record in records if record.get("skipped")] == [2]


def test_three_skipped_in_a_row_end_a_run_on_a_device(tmp_path, monkeypatch):
    trainer = begin(tmp_path / "run", steps=9, save_every=1, accumulate=1)
    spoilt_in(monkeypatch, trainer, 1, 2, 3)
    with pytest.raises(
        loop.TrainingError, match=r"loss was not finite in 3 steps in a row, up to step 4 \(not finite from blo"
    ):
        trainer.run()
    monkeypatch.undo()
    assert resume(tmp_path / "run").step == 3  # no parameter has changed since step 1
