"""`gpulayers train feedforward`: data, a whole run, resume, generate, evaluate."""

import numpy as np
import pytest
from tiny_run import TEXT, assert_same_run, lines

from gpulayers.cli import main
from gpulayers.data import DataError
from gpulayers.training import health_log, loop
from gpulayers.training.options import ConfigError
from gpulayers.training.tasks.feedforward import FeedForwardTask, LastTokens

FEW = ["--steps", "6", "--save-every", "2", "--eval-every", "3", "--sample-every", "3", "--threads", "1"]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "beer.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def config(data, **changes):
    default = FeedForwardTask.tiny(FeedForwardTask.default)
    return default.updated({"data": {"files": [str(data)]}, **changes}, "a test").complete()


def test_batches_are_windows_of_the_text_and_what_comes_next(data):
    task = FeedForwardTask(config(data, training={"accumulate": 2}))
    content = TEXT.encode()
    parts = list(task.parts(3))
    assert [part.first_sample for part in parts] == [0, 2]
    for _, (ids,), targets in parts:
        assert ids.shape == (2, 4)
        assert targets.shape == (2,)
        for row, target in zip(ids, targets, strict=True):
            assert bytes([*row, target]) in content[: -len(content) // 10]
    for ids, targets in task.held_out:
        assert all(bytes([*row, target]) in content for row, target in zip(ids, targets, strict=True))
    assert sum(len(targets) for _, targets in task.held_out) == 16


def test_the_loss_that_is_measured(data):
    task = FeedForwardTask(config(data))
    ids, targets = (np.concatenate(part) for part in zip(*task.held_out, strict=True))
    logits = task.model(ids).astype(np.float64)
    wanted = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(ids)), targets]
    assert task.measure()["val_loss"] == pytest.approx(wanted.mean(), rel=1e-6)


def test_a_short_prompt_is_filled_up_in_front(data):
    task = FeedForwardTask(config(data))
    model = LastTokens(task.model)
    assert np.array_equal(model(np.array([[7, 9]]))[0, 0], task.model(np.array([[7, 7, 7, 9]]))[0])
    assert np.array_equal(model(np.array([[1, 2, 3, 4]]))[0, 0], task.model(np.array([[1, 2, 3, 4]]))[0])


def test_a_short_text_is_one_sentence(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("0123456789" * 3)
    with pytest.raises(
        DataError, match=r"short\.txt is too short: its validation part, the last tenth, has no 5 tokens"
    ):
        FeedForwardTask(config(path))


def test_wrong_options(data, capsys):
    for words in (["--activation", "swish"], ["--layers", "-1"], ["--dropout", "1"]):
        assert main(["train", "feedforward", "--data", str(data), *words]) == 2
        assert capsys.readouterr().err.startswith(f"gpulayers: error: {words[0]}")
    with pytest.raises(ConfigError, match="init in \\[model\\] of a test must be one of default, naive"):
        config(data, model={"init": "zero"})


def test_batchnorm_needs_two_samples_in_each_part(data):
    FeedForwardTask(config(data, model={"around": "batchnorm"}, training={"accumulate": 2}))
    with pytest.raises(ConfigError, match="needs 2 samples in each part of a batch, got a batch of 4 in 3 parts"):
        FeedForwardTask(config(data, model={"around": "batchnorm"}, training={"accumulate": 3}))


def test_a_run_from_the_command_line(data, tmp_path, capsys):
    words = ["train", "feedforward", "--tiny", "--data", str(data), *FEW, "--health", "--health-every", "2"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a" / "loss.png").exists()
    assert (tmp_path / "a" / "health.png").exists()
    records = lines(tmp_path / "a" / "metrics.jsonl")
    assert [r["step"] for r in records if "val_loss" in r] == [3, 6]
    assert [r["step"] for r in lines(tmp_path / "a" / "health.jsonl")] == [1, 3, 5]
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "a"), "--prompt", "beer", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("beer")
    for words in (["--beam", "2"], ["--length-penalty", "0.6"]):
        assert main(["generate", str(tmp_path / "a"), *words]) == 2
        assert "not for feedforward" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "a")]) == 0
    assert "loss" in capsys.readouterr().out


def test_resumed_is_as_never_stopped(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)
    monkeypatch.setattr(health_log, "plot_health", lambda *_, **__: None)
    words = ["train", "feedforward", "--tiny", "--data", str(data), *FEW, "--around", "batchnorm", "--health"]
    words += ["--dropout", "0.1", "--activation", "relu", "--schedule-steps", "6", "--warmup", "1"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert main([*words, "--out", str(tmp_path / "b"), "--steps", "3", "--eval-every", "3"]) == 0
    assert main(["train", "--resume", str(tmp_path / "b"), "--steps", "6"]) == 0
    assert_same_run(tmp_path / "a", tmp_path / "b")
