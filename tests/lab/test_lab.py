"""A tiny lab from end to end: results, resume after a kill at any byte, table, pictures, command."""

import json
import math

import numpy as np
import pytest

from gpulayers.cli import main
from gpulayers.data import DataError
from gpulayers.lab import study as study_module
from gpulayers.lab.experiment import LabOptions, Text, run_cell
from gpulayers.lab.grid import Cell
from gpulayers.lab.pictures import MAPS, plot_all, values_of
from gpulayers.lab.study import resume, start
from gpulayers.lab.table import table
from gpulayers.storage import FileError, only_writer
from gpulayers.training.options import ConfigError

TINY = LabOptions(depth=3, width=8, context=3, dim=4, steps=4, batch=8, look_every=2, measure=16)
FOUR = LabOptions(**{**vars(TINY), "only": ("tanh", "plain", "no clip", "no penalty", "relu", "naive", "he")})


@pytest.fixture(scope="module")
def text():
    return Text(TINY)


@pytest.fixture(autouse=True)
def one_text(text, monkeypatch):
    """The text is read once; it depends on context, batch and seed alone, which are the same in all tests."""
    monkeypatch.setattr(study_module, "Text", lambda options: text)


def finished(study):
    for _ in study.run():
        pass
    study.finish()
    return study


@pytest.fixture(scope="module")
def done(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs") / "done"
    return finished(start(FOUR, folder, lambda options: text))


# ------------------------------------------------------------------------------------------------ one combination


def test_a_result(text):
    result = run_cell(Cell("tanh", "xavier"), TINY, text)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["cell"] == ["tanh", "xavier", "plain", "no clip", "no penalty"]
    assert result["first"] == pytest.approx(math.log(text.vocab), abs=0.5)
    assert result["loss"] == pytest.approx(math.log(text.vocab), abs=0.5)
    assert [look["step"] for look in result["health"]] == [1, 3, 4]  # the last step is always looked at
    assert list(result["health"][0]["layers"]) == ["embedding", "W.4", "W.3", "W.2", "W.1"]
    assert result["sick"] is result["stopped"] is None
    assert result["well"]


def test_each_word_of_a_combination_does_something(text):
    plain = Cell("relu", "he")
    options = LabOptions(**{**vars(TINY), "clip": 0.01, "l1": 0.1, "l2": 0.1, "lr": 0.5})
    losses = {
        tuple(cell): run_cell(cell, options, text)["loss"]
        for cell in (plain, plain._replace(clip="clip"), plain._replace(penalty="l1"), plain._replace(penalty="l2"))
    }
    assert len(set(losses.values())) == 4


def test_what_explodes_stops(text):
    options = LabOptions(**{**vars(TINY), "depth": 12, "width": 64, "steps": 50})
    result = run_cell(Cell("relu", "naive"), options, text)
    assert result["stopped"] is not None
    assert result["loss"] is None
    assert not result["well"]
    assert result["sick"]["kind"] == "exploding"
    assert result["sick"]["step"] == 1
    assert result["health"][-1]["sick"]["kind"] == "not finite"
    clipped = run_cell(Cell("relu", "naive", clip="clip"), options, text)
    assert clipped["stopped"] is None


def test_the_text(text):
    ids, targets = text.batch(3)
    assert ids.shape == (8, 3)
    assert targets.shape == (8,)
    assert np.array_equal(text.batch(3)[0], ids)
    assert sum(len(held) for _, held in text.held_out) == 16


# ------------------------------------------------------------------------------------------------ the whole


def test_files(done):
    folder = done.folder
    names = {"lab.toml", "lab.jsonl", "lab.json", "lab.png", *(f"{name}.png" for name in MAPS)}
    assert {path.name for path in folder.iterdir()} == names
    content = json.loads((folder / "lab.json").read_text())
    assert [result["cell"][:2] for result in content["results"]] == [
        ["tanh", "naive"], ["tanh", "he"], ["relu", "naive"], ["relu", "he"],
    ]  # fmt: skip
    assert content["options"]["depth"] == 3
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("cut", [0, 40])
def test_killed_and_resumed_is_as_never_stopped(kept, cut, done, text, tmp_path, monkeypatch):
    """After a kill in the middle of a line, `cut` bytes of the next one are there."""
    monkeypatch.setattr(study_module, "plot_all", lambda *_: None)
    folder = tmp_path / "lab"
    start(FOUR, folder, lambda options: text)
    lines = (done.folder / "lab.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "lab.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:cut])
    again = resume(folder, lambda options: text)
    assert again.options == FOUR
    assert len(again.results) == kept
    finished(again)
    for name in ("lab.json", "lab.jsonl", "lab.toml"):
        assert (folder / name).read_bytes() == (done.folder / name).read_bytes()


def test_a_finished_lab_has_nothing_left_to_do(done, text):
    again = resume(done.folder, lambda options: text)
    assert list(again.run()) == []


def test_what_does_not_fit_is_one_sentence(done, text, tmp_path):
    with pytest.raises(ConfigError, match="exists already: choose another --out, or gpulayers lab --resume"):
        start(FOUR, done.folder, lambda options: text)
    with pytest.raises(ConfigError, match=r"is not the folder of a lab: it has no lab\.toml"):
        resume(tmp_path)
    with pytest.raises(ConfigError, match="unknown word 'rely'"):
        start(LabOptions(only=("rely",)), tmp_path / "none")
    assert not (tmp_path / "none").exists()

    other = tmp_path / "other"
    start(FOUR, other, lambda options: text)
    settings = (other / "lab.toml").read_text()
    for old, new, error, sentence in (
        ('digest = "', 'digest = "0', DataError, "the text is not what .*other was started with: its digest differs"),
        ("depth = 3", "depth = 0", ConfigError, r"depth in \[lab\] of .*lab\.toml must be at least 1"),
        ("depth = 3", "deep = 3", ConfigError, r"unknown key 'deep' in \[lab\]"),
        ("[lab]", "[lap]", ConfigError, r"has no table \[lab\]"),
    ):
        assert old in settings
        (other / "lab.toml").write_text(settings.replace(old, new))
        with pytest.raises(error, match=sentence):
            resume(other, lambda options: text)
    (other / "lab.toml").write_text(settings)
    lines = (done.folder / "lab.jsonl").read_bytes().splitlines(keepends=True)
    less = json.dumps({"step": 1, "cell": json.loads(lines[0])["cell"]}).encode() + b"\n"
    for line in (lines[1], less):
        (other / "lab.jsonl").write_bytes(line)
        with pytest.raises(FileError, match=r"does not hold the combinations that .*lab\.toml says"):
            resume(other, lambda options: text)


def test_table():
    sick = {"step": 1, "layer": "W.9", "kind": "exploding", "why": "because"}
    base = {"loss": 2.5, "stopped": None, "sick": None, "well": True}
    results = [
        {**base, "cell": ["tanh", "he", "plain", "no clip", "l1"]},
        {**base, "cell": ["relu", "naive", "plain", "clip", "l2"], "sick": sick},
        {**base, "cell": ["relu", "naive", "plain", "clip", "l2"], "sick": sick, "well": False, "loss": 1e9},
        {**base, "cell": ["relu", "naive", "plain", "clip", "l2"], "sick": sick, "well": False, "stopped": 4},
        {**base, "cell": ["relu", "naive", "plain", "clip", "l2"], "loss": None},
    ]
    assert table(results).splitlines() == [
        "activation  init   around  clip     penalty  loss               first sick layer",
        "tanh        he     plain   no clip  l1       2.500              none",
        "relu        naive  plain   clip     l2       2.500              W.9 exploding at step 1: because; well later",
        "relu        naive  plain   clip     l2       above 1000         W.9 exploding at step 1: because",
        "relu        naive  plain   clip     l2       stopped at step 4  W.9 exploding at step 1: because",
        "relu        naive  plain   clip     l2       not finite         none",
    ]


def test_values_of_a_map():
    layers = {"a": {"gradient": 0.01, "dead": 0.25, "saturated": 0.75}, "b": {"gradient": None}}
    result = {"health": [{"step": 1, "layers": layers, "sick": None}]}
    assert values_of(result, "gradient").tolist() == [[-2], [1e30]]
    dead = values_of(result, "dead")
    assert dead[0, 0] == 0.75
    assert math.isnan(dead[1, 0])


def test_pictures_of_one_sick_combination(text, tmp_path):
    options = LabOptions(**{**vars(TINY), "depth": 12, "width": 64})
    plot_all([run_cell(Cell("relu", "naive"), options, text)], tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 5


# ------------------------------------------------------------------------------------------------ the command


def words(folder, *more):
    tiny = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in vars(TINY).items()
        if name not in ("full", "only") and value != getattr(LabOptions(), name)
    ]
    return ["lab", "--out", str(folder), *tiny, "--only", *FOUR.only, *more]


def test_command(done, tmp_path, capsys, monkeypatch):
    calls = []

    def interrupted(cell, options, text):
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_cell(cell, options, text)

    monkeypatch.setattr(study_module, "run_cell", interrupted)
    monkeypatch.setattr(study_module, "plot_all", lambda *_: None)
    folder = tmp_path / "lab"
    assert main(words(folder)) == 130
    assert f"2 of 4 combinations are done; gpulayers lab --resume {folder} goes on" in capsys.readouterr().err
    assert main(["lab", "--resume", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == table(done.results) + "\n"
    assert "2 of 4 combinations to train" in err
    assert "3/4 relu, naive, plain, no clip, no penalty: loss " in err
    assert (folder / "lab.json").read_bytes() == (done.folder / "lab.json").read_bytes()


def test_a_lab_that_cannot_begin_leaves_no_folder(text, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise FileError("cannot write: No space left on device")

    def no_memory(*_):
        raise MemoryError("Unable to allocate 728. TiB")

    monkeypatch.setattr(study_module, "run_cell", no_memory)
    assert main(words(tmp_path / "lab")) == 2
    error = capsys.readouterr().err
    assert "not enough memory (Unable to allocate 728. TiB)" in error
    assert "goes on" not in error
    monkeypatch.setattr(study_module, "write_atomically", full)
    with pytest.raises(FileError, match="No space left"):
        start(FOUR, tmp_path / "lab", lambda options: text)
    assert not (tmp_path / "lab").exists()


def test_a_lab_that_another_process_writes_is_left_alone(text, tmp_path, capsys):
    folder = tmp_path / "lab"
    start(FOUR, folder, lambda options: text)
    with only_writer(folder):
        assert main(["lab", "--resume", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "another process is writing" in error
    assert (folder / "lab.toml").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--depth", "0"], "--depth must be at least 1 and at most 1000, got 0"),
        (["--steps", "x"], "--steps takes a whole number, got 'x'"),
        (["--resume", "x"], "--resume takes no other option, not"),
        (["--ful"], "unknown option --ful; did you mean --full?"),
    ],
)
def test_wrong_words(more, sentence, tmp_path, capsys):
    assert main(words(tmp_path / "lab", *more)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "lab").exists()
