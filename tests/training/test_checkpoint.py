"""Checkpoints survive what H24 of the reported cases describes (Lightning-AI/pytorch-lightning #688, #19970;
petuum/adaptdl #70): a killed writer, a truncated newest file, leftovers, a full disk."""

import contextlib
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers import storage
from gpulayers.storage import FileError, save_tensors
from gpulayers.training.checkpoint import (
    BEST,
    latest_checkpoint,
    load_checkpoint,
    numbered_checkpoints,
    save_best,
    save_checkpoint,
)


def tensors(step: int = 0) -> dict[str, np.ndarray]:
    return {
        "model.weight": np.full((3, 4), step, np.float32),
        "m.weight": np.full((3, 4), step + 0.5, np.float32),
        "v.weight": np.full((3, 4), 0.25, np.float32),
        "optimizer.applied": np.array(step, np.int64),
        "optimizer.skipped": np.array(0, np.int64),
    }


METADATA = {"seed": 2**64 - 1, "best": math.inf, "loss": 0.1 + 0.2, "config": {"data": ["ä\udcff"], "clip": None}}


def steps(folder) -> list[int]:
    return [step for step, _ in numbered_checkpoints(folder)]


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_everything_comes_back(tmp_path):
    path = save_checkpoint(tmp_path, 200, tensors(200), METADATA)
    assert path == tmp_path / "checkpoint-00000200.safetensors"
    loaded, metadata = load_checkpoint(path)
    assert loaded.keys() == tensors().keys()
    for name, array in tensors(200).items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert {key: metadata[key] for key in METADATA} == METADATA  # to the last bit, infinity too
    assert metadata["step"] == 200
    assert metadata["versions"].keys() == {"gpulayers", "numpy", "python"}
    assert load_checkpoint(path, "model.")[0].keys() == {"model.weight"}


def test_the_last_three_and_the_best_are_kept(tmp_path):
    save_best(tmp_path, 0, tensors(0), {})
    for step in range(0, 600, 100):
        save_checkpoint(tmp_path, step, tensors(step), {})
    assert steps(tmp_path) == [300, 400, 500]
    assert load_checkpoint(tmp_path / BEST)[1]["step"] == 0
    save_best(tmp_path, 400, tensors(400), {})
    assert load_checkpoint(tmp_path / BEST)[1]["step"] == 400
    save_checkpoint(tmp_path, 123_456_789, tensors(), {}, keep=1)
    assert names(tmp_path) == ["checkpoint-123456789.safetensors", BEST]


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, 5, tensors(1), {})
    path = save_checkpoint(tmp_path, 5, tensors(2), {})
    assert steps(tmp_path) == [5]
    assert load_checkpoint(path)[0]["optimizer.applied"] == 2


def test_a_run_that_went_back_keeps_what_it_saves(tmp_path):
    """Broken files of later steps neither push the new one out nor count among the three."""
    for step in (1000, 2000, 3000):
        (tmp_path / f"checkpoint-{step:08d}.safetensors").write_bytes(b"broken")
    for step in (0, 10, 20, 30):
        save_checkpoint(tmp_path, step, tensors(step), {})
    assert steps(tmp_path) == [10, 20, 30, 1000, 2000, 3000]


# ------------------------------------------------------------------------------------------------- the newest whole one


def test_broken_ones_are_passed_over_with_a_sentence_each(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, tensors(step), {})
    newest, middle = tmp_path / "checkpoint-00000003.safetensors", tmp_path / "checkpoint-00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    content = bytearray(middle.read_bytes())
    content[-1] ^= 1
    middle.write_bytes(content)
    said: list[str] = []
    assert latest_checkpoint(tmp_path, said.append).name == "checkpoint-00000001.safetensors"
    assert len(said) == 2
    assert "checkpoint-00000003.safetensors is not a whole safetensors file" in said[0]
    assert "checkpoint-00000002.safetensors is damaged" in said[1]
    with pytest.warns(UserWarning, match="passed over"):
        latest_checkpoint(tmp_path)


def test_none_at_all_none_whole_and_no_folder(tmp_path):
    with pytest.raises(FileError, match=r"holds no checkpoint: start again in another folder$"):
        latest_checkpoint(tmp_path)
    (tmp_path / "config.toml").touch()
    (tmp_path / ".checkpoint-00000001.safetensors.77.tmp").write_bytes(b"half")
    (tmp_path / "checkpoint-00000009.safetensors.bak").touch()
    with pytest.raises(
        FileError, match=r"holds no checkpoint: start again in another folder with its settings: .*\.toml$"
    ):
        latest_checkpoint(tmp_path)
    (tmp_path / "checkpoint-00000009.safetensors").touch()
    with pytest.raises(FileError, match="holds no checkpoint that is whole: start again"):
        latest_checkpoint(tmp_path, lambda sentence: None)
    with pytest.raises(FileError, match=r"cannot read the run folder .*missing: No such file or directory"):
        latest_checkpoint(tmp_path / "missing")


def test_the_best_one_where_all_others_are_broken(tmp_path):
    save_best(tmp_path, 7, tensors(7), {})
    assert latest_checkpoint(tmp_path).name == BEST
    for step in (8, 9):
        (tmp_path / f"checkpoint-{step:08d}.safetensors").write_bytes(b"broken")
    said: list[str] = []
    assert latest_checkpoint(tmp_path, said.append).name == BEST
    assert len(said) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model.weight", "m.weight", "v.weight"])
def test_one_that_is_not_finite_is_passed_over(tmp_path, name, value):
    save_checkpoint(tmp_path, 1, tensors(1), {})
    spoilt = tensors(2)
    spoilt[name][1, 2] = value
    save_checkpoint(tmp_path, 2, spoilt, {})
    said: list[str] = []
    assert latest_checkpoint(tmp_path, said.append).name == "checkpoint-00000001.safetensors"
    assert len(said) == 1
    assert f"00000002.safetensors holds NaN or infinity in {name}: take a file from before" in said[0]


# ------------------------------------------------------------------------------------------------- failing writers


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("save", [save_checkpoint, save_best])
def test_a_save_that_fails_half_way_changes_nothing(tmp_path, monkeypatch, save, error):
    for step in (1, 2, 3):
        save(tmp_path, step, tensors(step), {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written: list[int] = []
    real = storage._bytes

    def fail_at_the_third(array: np.ndarray) -> memoryview:
        written.append(array.nbytes)
        if len(written) == len(tensors()) + 3:  # the checksums read each array once before the first is written
            assert len(names(tmp_path)) == len(before) + 1
            raise error
        return real(array)

    monkeypatch.setattr(storage, "_bytes", fail_at_the_third)
    with pytest.raises(FileError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        save(tmp_path, 4, tensors(4), {})
    if isinstance(error, OSError):
        assert str(caught.value).endswith(": No space left on device")
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_leftovers_of_a_killed_writer_are_ignored_and_cleaned(tmp_path):
    save_checkpoint(tmp_path, 1, tensors(1), {})
    for name in (".checkpoint-00000002.safetensors.99999.tmp", ".loss.png.99999.tmp"):
        (tmp_path / name).write_bytes(b"half a file")
    assert latest_checkpoint(tmp_path).name == "checkpoint-00000001.safetensors"
    save_checkpoint(tmp_path, 2, tensors(2), {})
    assert names(tmp_path) == ["checkpoint-00000001.safetensors", "checkpoint-00000002.safetensors"]


def test_an_old_one_that_cannot_be_removed_does_not_stop_the_run(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, tensors(1), {})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "unlink", refuse)
    with pytest.warns(UserWarning, match=r"cannot remove the old checkpoint .*1.safetensors: Permission denied"):
        save_checkpoint(tmp_path, 2, tensors(2), {}, keep=1)
    assert steps(tmp_path) == [1, 2]


WRITER = """
import sys
import numpy as np
from gpulayers.training.checkpoint import save_best, save_checkpoint
step = int(sys.argv[2])
while True:
    step += 1
    values = {f"model.{i}": np.full(50_000, step, np.float32) for i in range(4)}
    save_checkpoint(sys.argv[1], step, values, {"seed": step})
    save_best(sys.argv[1], step, values, {"seed": step})
    print(step, flush=True)
"""


def test_kill_9_at_any_moment(tmp_path):
    rng = np.random.default_rng()
    last = 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
            confirmed = max(map(int, process.stdout.read().split()), default=last + 1)
        broken: list[str] = []
        for path in (latest_checkpoint(tmp_path, broken.append), tmp_path / BEST):
            loaded, metadata = load_checkpoint(path)
            assert metadata["step"] == metadata["seed"] >= confirmed - (path.name == BEST)
            assert all((array == metadata["step"]).all() for array in loaded.values())
        assert not broken
        assert 1 <= len(steps(tmp_path)) <= 4  # at most one old one that the killed process had still to remove
        last = steps(tmp_path)[-1]
    save_checkpoint(tmp_path, last + 1, tensors(), {})
    assert len(names(tmp_path)) == 4  # three, the best, and no temporary file


# ------------------------------------------------------------------------------------------------- the wrong file


def test_files_that_are_not_ours(tmp_path):
    path = tmp_path / "x.safetensors"
    for metadata in ({}, {"format": "pt"}, {"format": '"pt"'}, {"format": "{"}, {"format": "[" * 100_000}):
        save_tensors(path, tensors(), metadata)
        with pytest.raises(FileError, match=r"x.safetensors is a safetensors file, but not a checkpoint of gpulayers"):
            load_checkpoint(path)
    ours = {"format": '"gpulayers checkpoint"', "version": "1"}
    save_tensors(path, tensors(), ours | {"version": "2", "step": "1"})
    with pytest.raises(FileError, match="has checkpoint format 2; this version of gpulayers reads 1"):
        load_checkpoint(path)
    for step in ({}, {"step": '"../../etc/passwd"'}, {"step": "-1"}, {"step": "true"}, {"step": "1.5"}):
        save_tensors(path, tensors(), ours | step)
        with pytest.raises(FileError, match="does not say at which step"):
            load_checkpoint(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple:
    folder = tmp_path_factory.mktemp("mutated")
    return folder / "y", save_checkpoint(folder, 1, tensors(), METADATA).read_bytes()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4))
def test_a_mutated_checkpoint_never_gives_anything_but_a_file_error(checkpoint, edits):
    path, content = checkpoint
    for place, cut, new in edits:
        place %= len(content)
        content = content[:place] + new + content[place + cut :]
    path.write_bytes(content)
    with contextlib.suppress(FileError):
        load_checkpoint(path)
