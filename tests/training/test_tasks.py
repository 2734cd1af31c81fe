"""The frame around a task, held to a task that is as unlike text as can be: nine points in three classes."""

import tomllib
from dataclasses import dataclass

import numpy as np
import pytest
from tiny_run import lines

from gpulayers.backend import to_device, to_numpy
from gpulayers.cli import main
from gpulayers.layers.linear import Linear
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint
from gpulayers.training.config import Config, OptimizerOptions, TrainingOptions
from gpulayers.training.options import Options, option
from gpulayers.training.tasks import DEFAULTS, TASKS, Part, Task
from gpulayers.training.tasks.task import shown

CENTRES = np.array([[2, 0], [0, 2], [-2, -2]], np.float32)


@dataclass(frozen=True)
class PointOptions(Options):
    """The network."""

    bias: bool = option(True, "a bias")


@dataclass(frozen=True)
class PointData(Options):
    """The data."""

    shift: float = option(0.0, "added to every point")


class PointTask(Task):
    """Points around three centres; `digest` changes with `shift`."""

    about = "Train a line between points.\nWithout options: on nine of them."
    default = Config(
        "points",
        PointOptions(),
        PointData(),
        OptimizerOptions(lr=0.5, warmup=0),
        TrainingOptions(steps=6, batch=9, threads=1),
    )
    units = "images"

    def __init__(self, config):
        super().__init__(config)
        self.points = np.repeat(CENTRES, 3, axis=0) + np.float32(config.data.shift)
        self.classes = np.repeat(np.arange(3), 3)
        self.digest, self.description = f"points {config.data.shift}", "9 points in 3 classes"
        self.model = self.rebuild(config, self.metadata())
        self.loss_options = {"label_smoothing": 0.1}

    def parts(self, k):
        backend = self.config.training.backend
        for part in np.array_split(np.arange(9), self.config.training.accumulate):
            yield Part(int(part[0]), (to_device(self.points[part], backend),), to_device(self.classes[part], backend))

    def measure(self):
        logits = self.model(to_device(self.points, self.config.training.backend))
        found = to_numpy(logits)
        loss, _ = cross_entropy(found, self.classes)
        return {"val_loss": float(loss), "val_accuracy": float((found.argmax(1) == self.classes).mean())}

    def pictures(self, folder, step):
        (folder / "points.png").write_text(f"step {step}")

    def metadata(self):
        return {"classes": ["a", "b", "c"]}

    @classmethod
    def rebuild(cls, config, metadata):
        return Linear(2, len(metadata["classes"]), bias=config.model.bias, rng=0).to(config.training.backend)


@pytest.fixture(autouse=True)
def points(monkeypatch):
    monkeypatch.setitem(TASKS, "points", PointTask)
    monkeypatch.setitem(DEFAULTS, "points", PointTask.default)
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


def run(capfd, *words, status=0):
    assert main([str(word) for word in words]) == status
    return capfd.readouterr()


def test_its_run(tmp_path, capfd):
    err = run(capfd, "train", "points", "--out", tmp_path / "run", "--accumulate", 2, "--eval-every", 3).err
    assert "9 parameters; 9 points in 3 classes" in err
    assert "step 6/6: validation loss" in err
    assert "nats an image, accuracy 100.00 %, loss" in err
    assert "images/s" in err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"] == {"shift": 0.0}
    records = lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records if "val_accuracy" in r] == [3, 6]
    assert '"images_per_second"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert lines(tmp_path / "run" / "samples.jsonl") == []
    assert (tmp_path / "run" / "points.png").read_text() == "step 6"
    metadata = load_checkpoint(tmp_path / "run" / "checkpoint-best.safetensors")[1]
    assert metadata["classes"] == ["a", "b", "c"]


def test_loss_options_reach_the_loss(tmp_path, capfd):
    run(capfd, "train", "points", "--out", tmp_path / "run", "--steps", 1)
    task = PointTask(PointTask.default.complete())
    loss, _ = cross_entropy(task.model(task.points), task.classes, label_smoothing=0.1)
    assert lines(tmp_path / "run" / "metrics.jsonl")[0]["loss"] == pytest.approx(float(loss), rel=1e-6)


def test_resume_evaluate_and_generate(tmp_path, capfd):
    run(capfd, "train", "points", "--out", tmp_path / "run", "--steps", 3, "--no-bias")
    assert "at step 3 of 5" in run(capfd, "train", "--resume", tmp_path / "run", "--steps", 5).err
    out = run(capfd, "evaluate", tmp_path / "run").out.splitlines()
    assert out[0].endswith("checkpoint-best.safetensors (step 5)")
    assert out[1] == "data            9 points in 3 classes"
    assert out[2].startswith("loss            ")
    assert out[3] == "accuracy        100.00 %"
    assert "does not write" in run(capfd, "generate", tmp_path / "run", status=2).err
    assert "--data is not for points" in run(capfd, "evaluate", tmp_path / "run", "--data", "x", status=2).err


def test_evaluate_notices_changed_data(tmp_path, capfd, monkeypatch):
    run(capfd, "train", "points", "--out", tmp_path / "run", "--steps", 1)
    init = PointTask.__init__

    def changed(self, config):
        init(self, config)
        self.digest = "other"

    monkeypatch.setattr(PointTask, "__init__", changed)
    assert "its digest differs" in run(capfd, "evaluate", tmp_path / "run", status=2).err
    assert "its digest differs" in run(capfd, "train", "--resume", tmp_path / "run", "--steps", 2, status=2).err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["points", "--layers", "3"], "unknown option --layers"),
        (["--steps", "3", "points"], "the task comes first: gpulayers train points [options]"),
        (["points", "--config", "gpt.toml"], "gpt.toml is for the task 'gpt', not for 'points'"),
        (["poins"], "unknown task 'poins'; did you mean points?"),
        (["points", "--dtype", "float16"], "dtype float16 needs a GPU"),
    ],
)
def test_what_is_refused_is_one_sentence(words, text, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.toml").write_text('task = "gpt"\n')
    error = run(capfd, "train", *words, status=2).err
    assert text in error
    assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["gpt.toml"]


def test_its_help(capfd):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "points", "--help"])
    out = capfd.readouterr().out
    assert PointTask.about in out
    assert "--shift X" in out
    assert "--layers" not in out


def test_figures_for_people():
    assert shown({"val_loss": 0.5, "val_accuracy": 0.98, "bleu": 31.25}, "images") == {
        "loss": "0.5000 nats an image",
        "accuracy": "98.00 %",
        "bleu": "31.25",
    }
    assert shown({"val_loss": 0.5}, "tokens") == {"loss": "0.5000 nats a token"}
