import json
import tomllib

import pytest
from tiny_run import assert_same_run, lines

from gpulayers.cli import main

TINY = {
    "--dim": 8,
    "--hidden": 12,
    "--layers": 1,
    "--heads": 2,
    "--dropout": 0.1,
    "--scheduled-sampling": 0.5,
    "--label-smoothing": 0.1,
    "--batch": 5,
    "--accumulate": 2,
    "--steps": 6,
    "--eval-every": 3,
    "--eval-pairs": 6,
    "--sample-every": 3,
    "--sample-pairs": 2,
    "--save-every": 2,
    "--threads": 1,
}
PAIRS = "".join(f"{a}{b}\t{b}{a}{b}\n" for a in "abcdefgh" for b in "abcdefgh")
WORDED = "".join(f"{a} and {b}\t{b} {a}\n" for a in PAIRS.split() for b in "xyz")


def words(out, *more, **options):
    """The command line of a run on PAIRS in folder `out`, whose parent gets the file."""
    data = out.parent / "pairs.tsv"
    if not data.exists():
        data.write_text(PAIRS)
    transformer = "transformer" in (*more, options.get("model"))
    dropped = "--scheduled-sampling" if transformer else "--heads"
    chosen = {k: v for k, v in TINY.items() if k != dropped} | {"--data": data, "--out": out}
    chosen |= {f"--{k.replace('_', '-')}": v for k, v in options.items()}
    return ["train", "seq2seq", *(str(w) for pair in chosen.items() if pair[1] is not None for w in pair), *more]


def run(capfd, *arguments, status=0):
    assert main([str(a) for a in arguments]) == status
    return capfd.readouterr()


def sentence(capfd, *arguments, status=2):
    """The one line that a command complains with."""
    error = run(capfd, *arguments, status=status).err
    assert error.startswith("gpulayers: error: ")
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module", params=["recurrent", "transformer"])
def trained(request, tmp_path_factory):
    """A run folder, finished."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(words(folder, model=request.param, eval_every=6)) == 0
    return folder


@pytest.fixture
def no_picture(monkeypatch):
    monkeypatch.setattr("gpulayers.training.loop.plot_loss", lambda *_, **__: None)
    monkeypatch.setattr("gpulayers.training.tasks.seq2seq.plot_attention", lambda *_: None)


def test_run_folder(trained):
    names = {p.name for p in trained.iterdir()}
    assert {"config.toml", "loss.png", "attention.png", "checkpoint-best.safetensors"} <= names
    assert (trained / "attention.png").read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "val_loss" in r] == [6]
    assert all(0 <= r["val_accuracy"] <= 1 for r in records if "val_loss" in r)
    assert all(r["tokens_per_second"] > 0 for r in records)
    samples = [r["text"].splitlines() for r in lines(trained / "samples.jsonl")]
    assert [len(text) for text in samples] == [2, 2]
    assert all(" -> " in line for text in samples for line in text)


@pytest.mark.parametrize("form", ["recurrent", "transformer"])
def test_resumed_bit_for_bit(form, tmp_path, capfd, no_picture):
    run(capfd, *words(tmp_path / "whole", model=form))
    run(capfd, *words(tmp_path / "parts", model=form, steps=3, schedule_steps=6))
    run(capfd, "train", "--resume", tmp_path / "parts", "--steps", 6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    written = tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    assert written["model"]["kind"] == form
    assert written["data"]["files"] == [str(tmp_path / "pairs.tsv")]


def test_config_of_a_run_repeats_it(tmp_path, capfd, no_picture):
    run(capfd, *words(tmp_path / "a", steps=3))
    run(capfd, "train", "seq2seq", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("form", ["recurrent", "transformer"])
def test_on_the_emulated_device(form, tmp_path, capfd, no_picture):
    """One step, its measurement and its sample, through the kernels."""
    found = {}
    (tmp_path / "pairs.tsv").write_text("a\tb\nb\tc\nc\ta\n")
    for device in ("numpy", "emulated"):
        options = {"backend": device, "model": form, "steps": 1, "batch": 2, "accumulate": 1, "eval_pairs": 1}
        options |= {"dim": 4, "hidden": 4, "sample_pairs": 1, "scheduled_sampling": 0, "longest": 1}
        run(capfd, *words(tmp_path / device, **options))
        found[device] = lines(tmp_path / device / "metrics.jsonl")[0]
    assert found["numpy"]["loss"] == pytest.approx(found["emulated"]["loss"], rel=1e-5)
    assert found["numpy"]["val_loss"] == pytest.approx(found["emulated"]["val_loss"], rel=1e-4)


def test_dates_are_the_default(tmp_path, capfd, no_picture):
    shown = run(capfd, "train", "seq2seq", "--tiny", "--steps", 1, "--threads", 1, "--out", tmp_path / "run")
    assert "dates in 26 styles to ISO 8601: 32,913 days to train on, 2 pairs of 3,612 other days" in shown.err
    assert " -> " in shown.out
    assert "2 pairs of" in run(capfd, "evaluate", tmp_path / "run").out


# -------------------------------------------------- generate, evaluate


def test_generate(trained, capfd):
    arguments = ["generate", trained, "--prompt", "abc\nhg"]
    greedy = run(capfd, *arguments).out
    assert greedy.count("\n") == 2
    assert run(capfd, *arguments, "--top-k", 1).out == greedy
    assert run(capfd, *arguments, "--beam", 1).out == greedy
    beam = run(capfd, *arguments, "--beam", 3, "--length-penalty", 0.6).out
    assert run(capfd, *arguments, "--beam", 3, "--length-penalty", 0.6).out == beam
    drawn = run(capfd, *arguments, "--temperature", 1, "--seed", 1).out
    assert run(capfd, *arguments, "--temperature", 1, "--seed", 1).out == drawn
    assert run(capfd, *arguments, "--temperature", 1, "--seed", 2).out != drawn
    assert max(map(len, run(capfd, *arguments, "--tokens", 2).out.splitlines())) <= 2
    assert run(capfd, *arguments, "--tokens", 0).out == "\n\n"
    assert run(capfd, "generate", trained, "--prompt", "abc\r\nhg\n").out == greedy


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "--prompt is missing: give the text to answer"),
        (["--prompt", "3 March\n\n2024"], "line 2 of --prompt is empty"),
        (["--prompt", "x" * 65], "line 1 of --prompt has 65 characters, more than the 64"),
        (["--prompt", "a", "--beam", 2, "--temperature", 1], "--beam above 1 draws nothing: leave --temperature away"),
        (["--prompt", "a", "--beam", 0], "--beam must be at least 1, got 0"),
    ],
)
def test_what_generate_refuses(options, text, trained, capfd):
    assert text in sentence(capfd, "generate", trained, *options)


def test_evaluate(trained, capfd, tmp_path):
    shown = run(capfd, "evaluate", trained, "--checkpoint", "last").out
    measured = lines(trained / "metrics.jsonl")[-1]
    assert f"{measured['val_loss']:.4f} nats a token" in shown
    assert f"{100 * measured['val_accuracy']:.2f} %" in shown
    file = tmp_path / "dates.tsv"
    file.write_text("3 March 2024\t2024-03-03\n4.5.2006\t2006-05-04\n")
    shown = run(capfd, "evaluate", trained, "--data", file).out
    assert f"{file}: 2 pairs" in shown
    file.write_text("3 March 2024 2024-03-03\n")
    assert "dates.tsv, line 1 has 1 column, not 2" in sentence(capfd, "evaluate", trained, "--data", file)


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "options", [["--tokens", "words"], ["--model", "transformer", "--tied", "--positions", "learned"]]
)
def test_a_file_of_pairs(options, tmp_path, capfd, no_picture):
    file = tmp_path / "pairs.tsv"
    file.write_text(WORDED)
    shown = run(capfd, *words(tmp_path / "run", *options, longest=20, steps=2))
    assert "pairs.tsv: 346 pairs to train on, 6 to measure on" in shown.err
    answers = run(capfd, "generate", tmp_path / "run", "--prompt", "ab and x\nsomething and y").out
    assert answers.count("\n") == 2
    assert "6 to measure on" in run(capfd, "evaluate", tmp_path / "run").out
    file.write_text(WORDED + "a\tb\n")
    assert "the data is not what" in sentence(capfd, "train", "--resume", tmp_path / "run", "--steps", 9)
    assert "the data is not what" in sentence(capfd, "evaluate", tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ("a\tb\nc\n", [], "pairs.tsv, line 2 has 1 column, not 2: a line is source TAB target"),
        ("a\tb\n\nc\td\n", [], "pairs.tsv, line 2 is empty"),
        ("a\tb\nc\t\n", [], "pairs.tsv, line 2 has an empty target"),
        ("a\tb\nc\t12345\n", ["--longest", "4"], "line 2: its target has 5 characters, more than --longest 4"),
        ("", [], "pairs.tsv is empty"),
        ("a\tb\n", [], "pairs.tsv has one source only"),
    ],
)
def test_files_that_cannot_be_used(content, options, text, tmp_path, capfd):
    (tmp_path / "pairs.tsv").write_text(content)
    assert text in sentence(capfd, *words(tmp_path / "run", *options, data=tmp_path / "pairs.tsv"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--tokens", "words"], "--tokens words is for pairs of your own"),
        (["--longest", "20"], "dates have up to 36 characters: --longest must be at least that, got 20"),
        (["--decoder", "dot"], "decoder dot needs --no-bidirectional"),
        (["--context", "both", "--no-bidirectional"], "context both needs a bidirectional encoder"),
        (["--model", "transformer", "--dim", "10", "--heads", "4"], "heads must divide dim, got 4 heads and dim 10"),
        (["--model", "transformer", "--decoder", "dot"], "--decoder is not for --model transformer"),
        (["--heads", "2"], "--heads is not for --model recurrent"),
        (["--model", "rnn"], "--model must be one of recurrent, transformer, got 'rnn'"),
        (["--cell", "gur"], "--cell must be one of rnn, gru, lstm, got 'gur'; did you mean gru?"),
        (["--label-smoothing", "2"], "--label-smoothing must be at least 0 and at most 1, got 2"),
        (["--data", "nothing.tsv"], "nothing.tsv does not exist"),
    ],
)
def test_options_that_do_not_fit(options, text, tmp_path, capfd):
    assert text in sentence(capfd, "train", "seq2seq", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--cell", "lstm", "--decoder", "general", "--layers", "2"],
        ["--cell", "rnn", "--decoder", "dot", "--no-bidirectional"],
        ["--decoder", "initial", "--context", "mean"],
        ["--decoder", "every_step", "--context", "max", "--sampling-steps", "4"],
        ["--model", "transformer", "--no-norm-first", "--positions", "learned"],
    ],
)
def test_every_form_trains(options, tmp_path, capfd, no_picture):
    run(capfd, *words(tmp_path / "run", *options, steps=2, eval_every=0, sample_every=0))
    assert "val_accuracy" in lines(tmp_path / "run" / "metrics.jsonl")[-1]


def test_without_attention_there_is_no_picture_of_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("gpulayers.training.loop.plot_loss", lambda *_, **__: None)
    run(capfd, *words(tmp_path / "run", decoder="initial", steps=1))
    assert not (tmp_path / "run" / "attention.png").exists()


def test_seeds_draw_other_pairs():
    from gpulayers.training.tasks import DEFAULTS
    from gpulayers.training.tasks.seq2seq import Seq2SeqTask

    def targets(seed):
        config = Seq2SeqTask.tiny(DEFAULTS["seq2seq"]).with_training(seed=seed, eval_pairs=50).complete()
        task = Seq2SeqTask(config)
        return task, {p.target for k in range(30) for p in map(task.batches.stream, range(2 * k, 2 * k + 2))}

    (first, trained), (_, others) = targets(0), targets(1)
    assert trained != others
    assert not trained & {p.target for p in first.validation}
