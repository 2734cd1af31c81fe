import errno
import itertools
import json
import math
import os
import signal

import numpy as np
import pytest
from tiny_run import assert_same_run, last_checkpoint, lines, words

from gpulayers.cli.arguments import Parser
from gpulayers.cli.train import add_parser, config_from
from gpulayers.layers.embedding import Embedding
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import SGD, AdamW
from gpulayers.storage import FileError, only_writer
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint, save_checkpoint
from gpulayers.training.loop import TrainingError, train_step
from gpulayers.training.progress import Progress, printable
from gpulayers.training.run import resume, start
from gpulayers.training.stop import StopSignal
from gpulayers.training.tasks import Part


def begin(out, **options):
    """A trainer at step 0."""
    parser = Parser(prog="gpulayers")
    arguments = words(out, **options)
    add_parser(parser.add_subparsers(), arguments[1:])
    return start(config_from(parser.parse_args(arguments)), out)


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


# ---------------------------------------------------------------------------------------------------- one step


def loss_of(model, optimizer, parts, seed, k):
    return optimizer.read(train_step(model, optimizer, parts, seed, k)).loss


def split(ids, targets, *sizes):
    """Parts with these numbers of samples."""
    starts = np.cumsum([0, *sizes])
    return [Part(int(a), (ids[a:b],), targets[a:b]) for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("sizes", [(4,), (1, 3), (2, 2), (1, 1, 1, 1)])
def test_a_mean_over_all_tokens_not_over_the_parts(sizes):
    # huggingface/transformers pull request 34191: means of micro-batches with different counts, averaged
    model = Embedding(4, 2)  # row i of the table is the logits of sample i
    model.weight.data[...] = [[0, 0], [0, 3], [0, 3], [0, 3]]
    before = model.weight.data.copy()
    parts = split(np.arange(4)[:, None], np.array([[0], [1], [1], [1]]), *sizes)
    loss = loss_of(model, SGD(model, lr=1.0), parts, seed=0, k=0)
    assert loss == pytest.approx(0.2097273, abs=1e-7)
    gradient = before - model.weight.data
    assert np.allclose(gradient, [[-0.125, 0.125]] + [[0.0118565, -0.0118565]] * 3, atol=1e-6)


def test_a_part_without_targets_adds_nothing():
    results = []
    for parts in (1, 2):
        model = Embedding(2, 2, rng=0)
        both = split(np.arange(2)[:, None], np.array([[0], [-100]]), 1, 1)
        results.append((loss_of(model, SGD(model, lr=1.0), both[:parts], 0, 0), model.weight.data.tolist()))
    assert results[0] == results[1]


def test_a_batch_without_targets_has_loss_0_and_moves_nothing():
    """pytorch/pytorch #70348: 0 / 0; here loss, gradient and count are 0."""
    model = Embedding(2, 2, rng=0)
    before = model.weight.data.copy()
    assert loss_of(model, SGD(model, lr=1.0), split(np.arange(2)[:, None], np.full((2, 1), -100), 1, 1), 0, 0) == 0
    assert np.array_equal(model.weight.data, before)


@pytest.mark.parametrize("sizes", [(1, 4), (2, 2, 1), (1, 1, 1, 1, 1)])
def test_every_split_gives_the_same_step_with_dropout_on(sizes, rng):
    ids, targets = rng.integers(0, 11, (2, 5, 8))
    results = []
    for part_sizes in [(5,), sizes]:
        model = GPT(GPTConfig(vocab=11, context=8, layers=2, heads=2, dim=16, dropout=0.3), seed=0, dtype="float64")
        loss = loss_of(model, AdamW(model, lr=1e-2), split(ids, targets, *part_sizes), seed=7, k=3)
        results.append((loss, model.state_dict()))
    (loss, state), (split_loss, split_state) = results
    assert split_loss == pytest.approx(loss, rel=1e-12)
    for name in state:
        assert np.allclose(state[name], split_state[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(where):
    model = Embedding(4, 3, rng=0)
    optimizer = AdamW(model, lr=0.1)
    good = split(np.arange(4)[:, None], np.zeros((4, 1), int), 4)
    train_step(model, optimizer, good, 0, 0)
    before = {**model.state_dict(), **optimizer.state_dict()}
    if where == "loss":
        original, model.weight.data[0, 0] = model.weight.data[0, 0], np.nan
        assert math.isnan(loss_of(model, optimizer, good, 0, 1))
        model.weight.data[0, 0] = original
    else:
        backward = model.backward
        model.backward = lambda dy, saved: backward(dy * np.float32(np.inf), saved)
        with np.errstate(invalid="ignore"):
            assert math.isfinite(loss_of(model, optimizer, good, 0, 1))
        del model.backward
    assert not optimizer.last_step_applied
    after = {**model.state_dict(), **optimizer.state_dict()}
    assert after.pop("optimizer.skipped") == 1
    for name, array in after.items():
        assert np.array_equal(array, before[name]), name
    assert not model.weight.grad.any()


# ---------------------------------------------------------------------------------------------------- a run


def test_what_a_run_leaves(tmp_path, capsys):
    trainer = begin(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").glob("*.safetensors")] == ["checkpoint-00000000.safetensors"]
    assert trainer.run() is None
    records = lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, 13))
    assert [r["step"] for r in records if "val_loss" in r] == [4, 8, 12]
    assert all({"loss", "lr", "grad_norm"} <= r.keys() for r in records)
    assert records[0]["lr"] == pytest.approx(trainer.config.optimizer.lr / 3)  # a warm-up of 12 // 4 steps
    assert records[-1]["loss"] < records[0]["loss"]
    samples = lines(tmp_path / "run" / "samples.jsonl")
    assert [s["step"] for s in samples] == [3, 6, 9, 12]
    assert sorted(p.name for p in (tmp_path / "run").glob("*.safetensors")) == [
        "checkpoint-00000008.safetensors",
        "checkpoint-00000010.safetensors",
        "checkpoint-00000012.safetensors",
        "checkpoint-best.safetensors",
    ]
    best = min((r for r in records if "val_loss" in r), key=lambda r: r["val_loss"])
    assert load_checkpoint(tmp_path / "run" / "checkpoint-best.safetensors")[1]["step"] == best["step"]
    shown = capsys.readouterr()
    assert "--- a sample at step 3 ---" in shown.out
    assert "validation loss" in shown.err
    assert "tokens/s" in shown.err


def test_no_steps(tmp_path):
    trainer = begin(tmp_path / "run", steps=0)
    assert trainer.run() is None
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-00000000.safetensors"
    assert lines(tmp_path / "run" / "metrics.jsonl") == []


def test_0_switches_off(tmp_path):
    trainer = begin(tmp_path / "run", steps=3, eval_every=0, sample_every=0, save_every=0)
    trainer.run()
    assert [r["step"] for r in lines(tmp_path / "run" / "metrics.jsonl") if "val_loss" in r] == [3]
    assert lines(tmp_path / "run" / "samples.jsonl") == []
    assert [p.name for p in sorted((tmp_path / "run").glob("checkpoint-0*"))] == [
        "checkpoint-00000000.safetensors",
        "checkpoint-00000003.safetensors",
    ]


@pytest.mark.parametrize(("optimizer", "dtype"), [("adamw", "float32"), ("sgd", "float64")])
def test_stopped_and_resumed_is_as_never_stopped(optimizer, dtype, tmp_path, monkeypatch):
    options = {"optimizer": optimizer, "dtype": dtype, "warmup": 3}
    begin(tmp_path / "straight", **options).run()
    stop_after(monkeypatch, 5)
    assert begin(tmp_path / "stopped", **options).run() == signal.SIGINT
    monkeypatch.undo()
    assert last_checkpoint(tmp_path / "stopped").name == "checkpoint-00000005.safetensors"
    assert resume(tmp_path / "stopped").run() is None
    assert_same_run(tmp_path / "straight", tmp_path / "stopped")


def stop_after(monkeypatch, step, number=signal.SIGINT):
    advance = loop.Trainer._advance

    def and_signal(self):
        advance(self)
        if self.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)
    monkeypatch.setattr(loop.Trainer, "_advance", and_signal)


def test_a_longer_run_holds_the_last_rate(tmp_path):
    begin(tmp_path / "run", steps=4).run()
    resume(tmp_path / "run", steps=6).run()
    rates = [r["lr"] for r in lines(tmp_path / "run" / "metrics.jsonl")]
    assert len(rates) == 6
    assert rates[4] == rates[5] < rates[3]
    assert "steps = 6" in (tmp_path / "run" / "config.toml").read_text()


def test_a_run_made_longer_and_stopped_at_once_still_knows_it(tmp_path):
    begin(tmp_path / "run", steps=4).run()
    resume(tmp_path / "run", steps=6)  # and killed before its first step
    assert resume(tmp_path / "run").run() is None
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 6


def test_longer_with_the_horizon_set_is_as_never_finished(tmp_path):
    begin(tmp_path / "straight", eval_every=5, sample_every=5, save_every=5, steps=10).run()
    begin(tmp_path / "longer", eval_every=5, sample_every=5, save_every=5, steps=5, schedule_steps=10).run()
    resume(tmp_path / "longer", steps=10).run()
    assert_same_run(tmp_path / "straight", tmp_path / "longer")


def test_a_broken_last_checkpoint_is_passed_over(tmp_path):
    begin(tmp_path / "straight").run()
    begin(tmp_path / "broken").run()
    last = last_checkpoint(tmp_path / "broken")
    last.write_bytes(last.read_bytes()[:-100])
    warnings = []
    resume(tmp_path / "broken", warn=warnings.append).run()
    assert len(warnings) == 1
    assert "passed over" in warnings[0]
    assert_same_run(tmp_path / "straight", tmp_path / "broken")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    begin(tmp_path / "run", steps=0)
    last = last_checkpoint(tmp_path / "run")
    tensors, metadata = load_checkpoint(last)
    for damaged in ({n: t for n, t in tensors.items() if n != "v.wte.weight"}, {**tensors, "model.ln_f.weight": [1.0]}):
        save_checkpoint(tmp_path / "run", 0, {n: np.asarray(t) for n, t in damaged.items()}, metadata)
        with pytest.raises(FileError, match=rf"{last.name} is a checkpoint of another model"):
            resume(tmp_path / "run", steps=1)


# ---------------------------------------------------------------------------------------------------- trouble


def poison(monkeypatch, *steps):
    """The loss of these batches is NaN."""
    original = train_step

    def poisoned(model, optimizer, parts, seed, k, *loss_options):
        if k in steps:
            optimizer.step(1, math.nan)
            return optimizer.outcome()
        return original(model, optimizer, parts, seed, k, *loss_options)

    monkeypatch.setattr(loop, "train_step", poisoned)


def test_a_skipped_step_is_reported(tmp_path, monkeypatch, capsys):
    trainer = begin(tmp_path / "run", steps=8)
    poison(monkeypatch, 2, 3, 5, 6)
    trainer.run()
    records = lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records if r.get("skipped")] == [3, 4, 6, 7]
    assert records[2]["loss"] is None
    assert trainer.optimizer.applied == 4
    assert "step 3: the loss is not finite; the step is skipped" in capsys.readouterr().err


def test_three_in_a_row_stop_the_run(tmp_path, monkeypatch):
    trainer = begin(tmp_path / "run")
    poison(monkeypatch, 5, 6, 7)
    with pytest.raises(TrainingError, match="loss was not finite in 3 steps in a row, up to step 8; the last good"):
        trainer.run()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-00000006.safetensors"
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1] == {
        "step": 8,
        "loss": None,
        "lr": pytest.approx(trainer.optimizer.lr),
        "grad_norm": None,
        "skipped": True,
    }


def test_skipped_steps_count_on_after_a_resume(tmp_path, monkeypatch):
    poison(monkeypatch, 5, 6, 7)
    stop_after(monkeypatch, 7)
    assert begin(tmp_path / "run").run() == signal.SIGINT
    with pytest.raises(TrainingError, match="up to step 8"):
        resume(tmp_path / "run").run()


def test_a_real_explosion_is_noticed(tmp_path):
    with pytest.raises(TrainingError):
        begin(tmp_path / "run", lr=1e30, clip=0, optimizer="sgd", warmup=0, steps=40, accumulate=1).run()


def test_disk_full_keeps_the_older_checkpoint(tmp_path, monkeypatch):
    trainer = begin(tmp_path / "run", eval_every=0)
    replace = os.replace

    def full(source, target):
        if "0004" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"cannot write .*checkpoint-00000004.safetensors: No space left on device"):
        trainer.run()
    monkeypatch.undo()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-00000002.safetensors"
    assert not list((tmp_path / "run").glob(".*"))
    assert resume(tmp_path / "run").step == 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["config.toml", "checkpoint-00000000.safetensors"])
def test_a_start_that_fails_leaves_no_folder(error, name, tmp_path, monkeypatch):
    replace = os.replace

    def failing(source, target):
        if str(target).endswith(name):
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(FileError if isinstance(error, OSError) else KeyboardInterrupt):
        begin(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_two_runs_do_not_write_into_one_folder(tmp_path):
    trainer = begin(tmp_path / "run")
    with only_writer(tmp_path / "run"):
        before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "run").iterdir())
        for start in (trainer.run, resume(tmp_path / "run").run, lambda: resume(tmp_path / "run", steps=99)):
            with pytest.raises(FileError, match=r"another process is writing to .*run: wait for it, or stop it"):
                start()
        assert before == sorted((p.name, p.read_bytes()) for p in (tmp_path / "run").iterdir())
    trainer.run()


# ---------------------------------------------------------------------------------------------------- what is shown


class Terminal:
    """Looks like one to tqdm."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_bar_on_a_terminal():
    terminal = Terminal()
    with Progress(10, 4, terminal) as progress:
        for _ in range(6):
            progress.step(2.5, 1234.0)
        progress.measured({"loss": "2.2500 nats a token", "accuracy": "98.00 %"})
    assert "loss 2.500, 1,234 tokens/s" in terminal.text
    assert "10/10" in terminal.text
    assert "left" in terminal.text
    assert "step 10/10: validation loss 2.2500 nats a token, accuracy 98.00 %" in terminal.text


def test_lines_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr("gpulayers.training.progress.LINE_EVERY", -1.0)
    with Progress(10, 0) as progress:
        progress.step(2.5, 1234.0)
    line = capsys.readouterr().err
    assert line.startswith("step 1/10: loss 2.500, 1,234 tokens/s, ")
    assert line.endswith(" left\n")
    assert "\r" not in line


def test_a_sample_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\n\tc\x00é") == "a\ufffd[2Jb\n\tc\ufffdé"


def test_signals_are_noted_once():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert stop.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGTERM) == before


def test_metrics_are_json(tmp_path):
    begin(tmp_path / "run", steps=1).run()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["tokens_per_second"] > 0
