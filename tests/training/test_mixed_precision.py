"""Runs in float16 and bfloat16, on the emulated device."""

import json

import numpy as np
import pytest
from tiny_run import last_checkpoint, lines, words

from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.optim import LossScale
from gpulayers.storage import load_tensors
from gpulayers.training import loop, run
from gpulayers.training.loop import TrainingError
from gpulayers.training.options import ConfigError
from gpulayers.training.run import open_saved, resume, start

SMALL = {"dim": 8, "context": 4, "batch": 2, "steps": 3, "eval_every": 0, "eval_tokens": 4, "sample_every": 0}


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


def begin(out, dtype, **options):
    """A trainer at step 0 on the emulated device."""
    parser = Parser(prog="gpulayers")
    arguments = words(out, dtype=dtype, **{"backend": "emulated", **SMALL, **options})
    add_parser(parser.add_subparsers(), arguments[1:])
    return start(config_from(parser.parse_args(arguments)), out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_run_saves_its_masters_and_resumes_bit_for_bit(dtype, tmp_path):
    begin(tmp_path / "whole", dtype).run()
    begin(tmp_path / "half", dtype, steps=1, schedule_steps=3).run()
    resume(tmp_path / "half", steps=3).run()
    tensors, metadata = load_tensors(last_checkpoint(tmp_path / "whole"))
    resumed, _ = load_tensors(last_checkpoint(tmp_path / "half"))
    assert tensors.keys() == resumed.keys()
    assert ("optimizer.loss_scale" in tensors) == (dtype == "float16")
    for name, array in tensors.items():
        assert array.tobytes() == resumed[name].tobytes(), name
        assert array.dtype == (np.int64 if name in ("optimizer.applied", "optimizer.skipped") else np.float32)
    weight = tensors["model.wte.weight"]
    assert not np.array_equal(weight, weight.astype(dtype).astype(np.float32))  # in full, not the rounded copy
    whole, half = (lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "half"))
    del half[0]["val_loss"]  # measured because the run stopped there
    assert whole == half
    assert json.loads(metadata["config"])["training"]["dtype"] == dtype


def test_on_the_cpu_a_saved_model_is_opened_in_float32(tmp_path):
    trainer = begin(tmp_path / "run", "bfloat16", steps=1)
    trainer.run()
    saved = open_saved(tmp_path / "run", "last")
    assert {parameter.dtype.name for parameter in saved.model.parameters()} == {"float32"}
    there = trainer.task.measure()["val_loss"]
    trainer.task.model = saved.model
    assert trainer.task.measure()["val_loss"] == pytest.approx(there, rel=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numpy_refuses(dtype, tmp_path):
    sentence = f"dtype {dtype} needs a GPU: choose float32, or --backend cupy"
    with pytest.raises(ConfigError, match=sentence):
        begin(tmp_path / "run", dtype, backend="numpy")
    begin(tmp_path / "run", dtype, steps=0)
    with pytest.raises(ConfigError, match=sentence):
        resume(tmp_path / "run", steps=1, backend="numpy")


def test_overflow_halves_the_scale_until_the_gradient_fits(tmp_path, monkeypatch, capsys):
    """H17: skipped steps are part of float16 training; the schedule does not see them."""
    monkeypatch.setattr(run, "loss_scale", lambda task: LossScale(2.0**16))
    trainer = begin(tmp_path / "run", "float16", steps=5)
    trainer.run()
    records = lines(tmp_path / "run" / "metrics.jsonl")
    skipped = [r["step"] for r in records if r.get("skipped")]
    assert skipped[:3] == [1, 2, 3]
    assert {r["lr"] for r in records[:4]} == {records[0]["lr"]}
    assert trainer.optimizer.applied == 5 - len(skipped) > 0
    assert float(trainer.optimizer.scale) == 2.0 ** (16 - len(skipped))
    assert (
        "step 1: the gradient overflowed; the step is skipped, the loss scale is 32768 now" in capsys.readouterr().err
    )


def test_overflow_at_the_floor_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "loss_scale", lambda task: LossScale(2.0**20, floor=2.0**20, patience=2))
    with pytest.raises(
        TrainingError, match=r"step 2: the gradient was not finite in 2 steps in a row at the lowest loss"
    ):
        begin(tmp_path / "run", "float16", steps=8).run()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-00000000.safetensors"


def test_the_first_scale_is_that_of_the_mean_loss(tmp_path):
    trainer = begin(tmp_path / "run", "float16", steps=0, batch=3)
    assert float(trainer.optimizer.scale) == 32768 / 16  # 12 tokens
