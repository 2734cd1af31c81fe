"""A GPT-2 folder of transformers (tests/make_gpt2_folder.py), tokenizers and large texts on the command line."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tiny_run import TEXT, assert_same_run, lines

from gpulayers.cli import main
from gpulayers.data import SubwordTokenizer, prepared
from gpulayers.models.gpt import GPT
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint

FOLDER = Path(__file__).parents[1] / "vectors" / "gpt2"
QUICK = {
    "--batch": 3,
    "--steps": 4,
    "--eval-every": 2,
    "--eval-tokens": 80,
    "--sample-every": 2,
    "--sample-tokens": 4,
    "--threads": 1,
}
SMALL = {"--layers": 1, "--heads": 2, "--dim": 16, "--context": 16, "--dropout": 0.1, "--save-every": 1}


def run(capfd, *arguments, status=0):
    """(stdout, stderr) of a command that must leave with this status."""
    assert main([str(a) for a in arguments]) == status
    return capfd.readouterr()


def sentence(capfd, *arguments):
    """The one line that a command complains with."""
    error = run(capfd, *arguments, status=2).err
    assert error.startswith("gpulayers: error: ")
    assert error.count("\n") == 1
    return error


def flags(options):
    return [word for pair in options.items() for word in pair]


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "beer.txt").write_text(TEXT, "utf-8")
    return tmp_path / "beer.txt"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "gpt2")
    return tmp_path / "gpt2"


# ------------------------------------------------------------------------------------------------ the folder


def test_generate_from_a_folder(capfd):
    options = ["--prompt", "12 green", "--tokens", 6, "--temperature", 0]
    out = run(capfd, "generate", FOLDER, *options).out
    model, tokenizer = GPT.load(FOLDER), SubwordTokenizer.from_file(FOLDER)
    ids = tokenizer.encode("12 green").tolist()
    for _ in range(6):
        ids.append(int(model(np.array([ids]))[0, -1].argmax()))
    assert out == tokenizer.decode(ids) + "\n"


def test_evaluate_a_folder_on_a_file(capfd, text):
    out = run(capfd, "evaluate", FOLDER, "--data", text).out
    tokens = len(SubwordTokenizer.from_file(FOLDER).encode(TEXT))
    assert f"tokens          {tokens - 1}\n" in out
    assert "comes without the text that it was trained on: name files by --data" in sentence(capfd, "evaluate", FOLDER)


def test_train_from_a_folder_and_go_on(capfd, text, tmp_path):
    """The first step starts from the folder's weights, its rate is for fine tuning, and a resume needs no folder."""
    shutil.copytree(FOLDER, tmp_path / "gpt2")
    options = flags(QUICK | {"--data": text, "--save-every": 2, "--schedule": "constant", "--warmup": 0})
    run(capfd, "train", "--from", tmp_path / "gpt2", *options, "--out", tmp_path / "a")
    config = tomllib.loads((tmp_path / "a" / "config.toml").read_text("utf-8"))
    assert (config["model"]["context"], config["model"]["rotary"], config["optimizer"]["lr"]) == (16, False, 5e-5)
    assert config["training"]["start_from"] == config["data"]["tokens"] == str(tmp_path / "gpt2")
    start = load_checkpoint(tmp_path / "a" / "checkpoint-00000000.safetensors")[0]
    np.testing.assert_array_equal(start["model.wte.weight"], GPT.load(FOLDER).wte.weight.data)

    run(
        capfd,
        "train",
        "--from",
        tmp_path / "gpt2",
        *options,
        "--steps",
        2,
        "--schedule-steps",
        4,
        "--out",
        tmp_path / "b",
    )
    shutil.rmtree(tmp_path / "gpt2")
    run(capfd, "train", "--resume", tmp_path / "b", "--steps", 4)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    out = run(capfd, "generate", tmp_path / "b", "--prompt", "9 green", "--tokens", 3).out
    assert out.startswith("9 green")


def test_a_smaller_context_and_another_dropout(capfd, text, tmp_path):
    options = ["--context", 8, "--dropout", 0.0, "--lr", 1e-3, *flags(QUICK), "--data", text, "--steps", 0]
    run(capfd, "train", "--from", FOLDER, *options, "--out", tmp_path / "a")
    start = load_checkpoint(tmp_path / "a" / "checkpoint-00000000.safetensors")[0]
    np.testing.assert_array_equal(start["model.wpe.weight"], GPT.load(FOLDER).state_dict()["wpe.weight"][:8])


def test_export_a_run(capfd, text, tmp_path):
    """There and back: what was trained from the folder is a folder again, with its tokenizer."""
    options = flags(QUICK | {"--data": text, "--lr": 1e-2})
    run(capfd, "train", "--from", FOLDER, *options, "--out", tmp_path / "a")
    assert "written: " in run(capfd, "export", tmp_path / "a", tmp_path / "x", "--checkpoint", "last").err
    model, state = GPT.load(tmp_path / "x"), load_checkpoint(tmp_path / "a" / "checkpoint-00000004.safetensors")[0]
    np.testing.assert_array_equal(model.wte.weight.data, state["model.wte.weight"])
    assert not np.array_equal(model.wte.weight.data, GPT.load(FOLDER).wte.weight.data)
    prompt = ["--prompt", "9 green", "--tokens", 5]
    again = run(capfd, "generate", tmp_path / "x", *prompt).out
    assert again == run(capfd, "generate", tmp_path / "a", *prompt, "--checkpoint", "last").out
    assert "exists already" in sentence(capfd, "export", tmp_path / "a", text)
    weights = (tmp_path / "x" / "model.safetensors").read_bytes()
    assert "x exists already: " in sentence(capfd, "export", tmp_path / "a", tmp_path / "x")
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == weights


def test_what_cannot_be_exported(capfd, text, tmp_path):
    options = [*flags(QUICK | SMALL | {"--data": text}), "--steps", 0]
    run(capfd, "train", *options, "--out", tmp_path / "a")
    wanted = "cannot be written for transformers: save_pretrained: GPT-2 has no form for a model with rotary = True"
    assert wanted in sentence(capfd, "export", tmp_path / "a", tmp_path / "x")
    run(capfd, "train", *options, "--no-rotary", "--out", tmp_path / "b")
    run(capfd, "export", tmp_path / "b", tmp_path / "x")
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["config.json", "model.safetensors"]
    run(capfd, "train", "feedforward", "--tiny", "--steps", 0, "--data", text, "--out", tmp_path / "c")
    assert "holds a model that has no form in transformers" in sentence(capfd, "export", tmp_path / "c", tmp_path / "y")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--dim", 32], "gpt2 has dim = 16, not 32: only context and dropouts can be chosen"),
        (["--context", 32], "gpt2 has a context of 16: its table of positions has no 32 rows"),
        (["--rotary"], "gpt2 has rotary = False, not True"),
        (["--tokenizer", "bytes"], "gpt2 has vocab = 300, not 256"),
    ],
)
def test_sizes_that_the_weights_do_not_have(capfd, text, tmp_path, options, wanted):
    out = tmp_path / "x"
    assert wanted in sentence(capfd, "train", "--from", FOLDER, "--data", text, *options, "--out", out)
    assert not out.exists()


def other_vocabulary(folder):
    content = SubwordTokenizer.train([TEXT], 270).files()["tokenizer.json"]
    (folder / "tokenizer.json").write_bytes(content)
    change = {"vocab_size": 2000}  # 300 could be a table that is filled up to a round number of rows
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text("utf-8")) | change), "utf-8"
    )


def without_tokenizer(folder):
    for name in ("tokenizer.json", "merges.txt"):
        (folder / name).unlink()


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (without_tokenizer, "gpt2 has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt"),
        (other_vocabulary, "gpt2 holds a tokenizer of another vocabulary: it has 270 tokens, the model 2000"),
        (truncated, "model.safetensors is not a whole safetensors file"),
        (lambda folder: (folder / "config.json").unlink(), "gpt2 has no config.json: it is no folder of a GPT-2 for"),
    ],
)
def test_wrong_folders(capfd, folder, tmp_path, text, change, wanted):
    change(folder)
    assert wanted in sentence(capfd, "generate", folder)
    assert wanted in sentence(capfd, "train", "--from", folder, "--data", text, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_folders_that_are_something_else(capfd, tmp_path):
    assert "has no checkpoints to choose from" in sentence(capfd, "generate", FOLDER, "--checkpoint", "last")
    assert "nowhere has no config.json" in sentence(capfd, "train", "--from", tmp_path / "nowhere")


def test_prompts_that_cannot_be_read(capfd):
    assert "--prompt is empty: give at least one" in sentence(capfd, "generate", FOLDER, "--prompt", "")
    assert "is not a character" in sentence(capfd, "generate", FOLDER, "--prompt", "\udcff")


# ------------------------------------------------------------------------------------------------ tokenizers and data


@pytest.mark.parametrize("task", ["gpt", "feedforward"])
def test_a_bpe_is_kept_and_the_run_goes_on_with_it(capfd, text, tmp_path, monkeypatch, task):
    small = SMALL if task == "gpt" else {"--context": 4, "--dim": 4, "--width": 8, "--save-every": 1}
    options = ["train", task, *flags(QUICK | small | {"--data": text, "--tokenizer": "bpe", "--vocab-size": 290})]
    out = run(capfd, *options, "--out", tmp_path / "a")
    assert " tokens to train on" in out.err
    run(capfd, *options, "--steps", 2, "--schedule-steps", 4, "--out", tmp_path / "b")
    monkeypatch.setattr(prepared, "_made", lambda *_: pytest.fail("the tokenizer was made again"))
    run(capfd, "train", "--resume", tmp_path / "b", "--steps", 4)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    metadata = load_checkpoint(tmp_path / "b" / "checkpoint-best.safetensors")[1]
    assert metadata["tokenizer"]["kind"] == "subword"
    assert run(capfd, "generate", tmp_path / "b", "--prompt", "9 bottles", "--tokens", 3).out.startswith("9 bottles")
    assert "bits per byte" in run(capfd, "evaluate", tmp_path / "b").out if task == "gpt" else True


def test_a_run_from_the_cache_is_the_run_from_memory(capfd, text, tmp_path):
    """Batches, validation and all: bit for bit, over a stop, with files, folders and .jsonl."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.txt").write_text(TEXT[:900], "utf-8")
    documents = [json.dumps({"body": line}) for line in TEXT.splitlines()]
    (tmp_path / "d.jsonl").write_text("\n".join(documents), "utf-8")
    data = ["--data", text, tmp_path / "more", tmp_path / "d.jsonl", "--text-field", "body"]
    options = ["train", *flags(QUICK | SMALL | {"--tokens": "characters"}), *data]
    run(capfd, *options, "--out", tmp_path / "a")
    cached = [*options, "--cache", tmp_path / "cache"]
    run(capfd, *cached, "--steps", 2, "--schedule-steps", 4, "--out", tmp_path / "b")
    run(capfd, "train", "--resume", tmp_path / "b", "--steps", 4)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert len(list((tmp_path / "cache").rglob("tokens.safetensors"))) == 1
    assert lines(tmp_path / "a" / "metrics.jsonl")[-1]["step"] == 4


def test_a_tokenizer_from_a_file(capfd, text, tmp_path):
    options = ["train", *flags(QUICK | SMALL | {"--data": text, "--tokenizer": FOLDER / "tokenizer.json"})]
    run(capfd, *options, "--out", tmp_path / "a")
    state = load_checkpoint(tmp_path / "a" / "checkpoint-00000004.safetensors")[0]
    assert state["model.wte.weight"].shape == (300, 16)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--tokenizer", "bites"], "got 'bites'; did you mean bytes?"),
        (
            ["--tokenizer", "nowhere.json"],
            "must be bytes, characters, bpe, a tokenizer.json or its folder, got 'nowhere",
        ),
        (["--vocab-size", 300], "--vocab-size is for --tokenizer bpe, not for bytes"),
        (["--tokenizer", "bpe", "--vocab-size", 256], "--vocab-size must be at least 257, got 256"),
        (["--text-field", "body"], "line 1 of data file .*d.jsonl has no text under 'body'; it has 'text'"),
    ],
)
def test_other_wrong_options(capfd, tmp_path, options, wanted):
    import re

    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n', "utf-8")
    error = sentence(capfd, "train", "--data", tmp_path / "d.jsonl", *options, "--out", tmp_path / "x")
    assert re.search(wanted, error), error


def test_resume_takes_no_folder_or_tokenizer(capfd, tmp_path):
    error = sentence(capfd, "train", "--resume", tmp_path, "--from", FOLDER, "--tokenizer", "bpe")
    assert "not --from, --tokenizer" in error or "not --tokenizer, --from" in error
