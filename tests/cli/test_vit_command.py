"""`gpulayers train vit` and `evaluate`, on 24 tiny images of two classes that are easily told apart."""

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from tiny_run import assert_same_run, lines

from gpulayers.cli import main
from gpulayers.training import loop
from gpulayers.training.tasks import vit

OPTIONS = {
    "--patch": 2, "--dim": 8, "--heads": 2, "--layers": 1, "--dropout": 0.1, "--batch": 5, "--accumulate": 2,
    "--steps": 8, "--eval-every": 4, "--sample-every": 4, "--save-every": 2, "--threads": 1, "--lr": 0.02,
}  # fmt: skip


def arrays(count=24):
    """Bright above or bright below, and noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = rng.uniform(0, 0.5, (count, 4, 4))
    images[labels == 0, :2] += 0.5
    images[labels == 1, 2:] += 0.5
    return images, np.array(["above", "below"])[labels]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "halves.npz"
    images, labels = arrays()
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run folder, finished, with its pictures."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(words(data, folder, steps=30, eval_every=30, sample_every=30, save_every=0)) == 0
    return folder


@pytest.fixture
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)
    monkeypatch.setattr(vit.ViTTask, "pictures", lambda *_: None)


def words(data, out, **options):
    chosen = OPTIONS | {"--data": data, "--out": out} | {f"--{k.replace('_', '-')}": v for k, v in options.items()}
    return ["train", "vit", *(str(word) for pair in chosen.items() for word in pair)]


def sentence(capfd, *arguments):
    """The one line that a command complains with."""
    capfd.readouterr()
    assert main([str(a) for a in arguments]) == 2
    error = capfd.readouterr().err
    assert error.startswith("gpulayers: error: ")
    assert error.count("\n") == 1
    return error


def evaluated(capfd, *arguments):
    capfd.readouterr()
    assert main(["evaluate", *map(str, arguments)]) == 0
    return dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())


# ---------------------------------------------------------------------------------------------- training


def test_what_a_run_leaves(trained):
    assert {"attention.png", "confusion.png", "loss.png"} <= {file.name for file in trained.iterdir()}
    last = lines(trained / "metrics.jsonl")[-1]
    assert last["val_accuracy"] == 1.0
    assert last["val_loss"] < 0.5
    assert lines(trained / "samples.jsonl")[-1]["text"].startswith("0 of 4 held-out images are taken for another class")


def test_a_run_that_is_stopped_goes_on_bit_for_bit(data, tmp_path, no_picture):
    assert main(words(data, tmp_path / "whole")) == 0
    assert main(words(data, tmp_path / "stopped", steps=3, schedule_steps=8)) == 0
    assert main(["train", "--resume", str(tmp_path / "stopped"), "--steps", "8"]) == 0
    # stopped at step 3, it was measured and sampled there besides
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for name in ("metrics.jsonl", "samples.jsonl"):
        kept = [record for record in lines(stopped / name) if record["step"] != 3]
        assert kept == [record for record in lines(whole / name) if record["step"] != 3]
    assert_same_tensors(whole, stopped)


def assert_same_tensors(a, b):
    from gpulayers.storage import load_tensors

    left, right = (load_tensors(folder / "checkpoint-00000008.safetensors")[0] for folder in (a, b))
    assert left.keys() == right.keys()
    assert all(left[name].tobytes() == right[name].tobytes() for name in left)


def test_the_same_seed_gives_the_same_run(data, tmp_path, no_picture):
    for name in ("a", "b"):
        assert main(words(data, tmp_path / name)) == 0
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert main(words(data, tmp_path / "c", seed=1)) == 0
    assert lines(tmp_path / "a" / "metrics.jsonl") != lines(tmp_path / "c" / "metrics.jsonl")


def test_the_sample_shows_what_is_taken_for_another_class(data, tmp_path, no_picture):
    assert main(words(data, tmp_path / "run", lr=0.0, steps=2, sample_every=2)) == 0
    text = lines(tmp_path / "run" / "samples.jsonl")[-1]["text"]
    first, captions, *art = text.split("\n")
    wrong = int(first.split()[0])
    assert wrong > 0  # nothing is learnt
    assert captions.count(" taken for ") == min(wrong, 3)
    assert len(art) == 4


def test_the_emulated_device_starts_tiny(data, tmp_path, no_picture):
    out = tmp_path / "run"
    rest = ["--steps", "2", "--dim", "8", "--data", str(data)]
    assert main(["train", "vit", "--backend", "emulated", *rest, "--out", str(out)]) == 0
    emulated = lines(out / "metrics.jsonl")
    assert main(["train", "vit", "--tiny", *rest, "--out", str(tmp_path / "cpu")]) == 0
    for a, b in zip(emulated, lines(tmp_path / "cpu" / "metrics.jsonl"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert emulated[-1]["val_loss"] > 0


def test_digits_are_the_default(tmp_path, no_picture, capfd):
    assert main(["train", "vit", "--tiny", "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    text = capfd.readouterr().err
    assert "scikit-learn's digits: 10 classes, 1,438 images of 8 x 8 x 1 to train on, 359 to measure on" in text


def test_a_clear_word_without_scikit_learn(monkeypatch, tmp_path, capfd):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    error = sentence(capfd, "train", "vit", "--out", tmp_path / "run")
    assert "scikit-learn is not installed" in error
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_fit(data, tmp_path, capfd):
    def complaint(**options):
        return sentence(capfd, *words(options.pop("images", data), tmp_path / "run", **options))

    assert "patch must divide the images, got 3 for 4 x 4 x 1 (height, width, channels)" in complaint(patch=3)
    assert "heads must divide dim, got 3 heads and dim 8" in complaint(heads=3)
    assert "--pool must be one of class, mean, got 'max'" in complaint(pool="max")
    assert "does not exist" in complaint(images=tmp_path / "nothing")
    assert not (tmp_path / "run").exists()


def test_data_that_has_changed(data, tmp_path, no_picture, capfd):
    copy = shutil.copy(data, tmp_path / "copy.npz")
    assert main(words(copy, tmp_path / "run", steps=2)) == 0
    images, labels = arrays()
    np.savez(copy, images=1 - images, labels=labels)
    assert "its digest differs" in sentence(capfd, "train", "--resume", tmp_path / "run", "--steps", 4)
    assert "its digest differs" in sentence(capfd, "evaluate", tmp_path / "run")


# ---------------------------------------------------------------------------------------------- saved models


def test_evaluate_measures_what_training_did(trained, capfd):
    found = evaluated(capfd, trained)
    last = lines(trained / "metrics.jsonl")[-1]
    assert found["loss"] == f"{last['val_loss']:.4f} nats an image"
    assert found["accuracy"] == "100.00 %"


def test_evaluate_on_other_images(trained, tmp_path, capfd):
    """A folder with one class and one picture in it will do; two of three are right."""
    images, _ = arrays(6)
    for name, i in (("below", 1), ("below", 0), ("above", 2)):
        (tmp_path / "other" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * images[i]).astype(np.uint8)).save(tmp_path / "other" / name / f"{i}.png")
    found = evaluated(capfd, trained, "--data", tmp_path / "other")
    assert found["accuracy"] == "66.67 %"
    assert found["data"].endswith("other: 3 images of 4 x 4 x 1")
    shutil.rmtree(tmp_path / "other" / "below")
    assert evaluated(capfd, trained, "--data", tmp_path / "other")["accuracy"] == "100.00 %"


def test_evaluate_refuses_what_does_not_fit(trained, data, tmp_path, capfd):
    def complaint(images, labels):
        np.savez(tmp_path / "other.npz", images=images, labels=labels)
        return sentence(capfd, "evaluate", trained, "--data", tmp_path / "other.npz")

    images, labels = arrays()
    assert "has images of 4 x 6 x 1, the model was trained on 4 x 4 x 1" in complaint(
        np.pad(images, ((0, 0), (0, 0), (1, 1))), labels
    )
    assert "has images of 4 x 4 x 3, the model was trained on 4 x 4 x 1" in complaint(
        np.repeat(images[..., None], 3, axis=3), labels
    )
    labels[3] = "other"
    assert "has a class 'other' that the model does not know; it knows above, below" in complaint(images, labels)
    error = sentence(capfd, "evaluate", trained, "--data", data, data)
    assert "--data takes one folder or one .npz file for vit, got 2" in error


def test_grey_images_for_a_model_of_colours(data, tmp_path, no_picture, capfd):
    images, labels = arrays()
    np.savez(tmp_path / "colours.npz", images=np.repeat(images[..., None], 3, axis=3), labels=labels)
    assert main(words(tmp_path / "colours.npz", tmp_path / "run", steps=4)) == 0
    one, three = (evaluated(capfd, tmp_path / "run", "--data", path) for path in (data, tmp_path / "colours.npz"))
    assert one["loss"] == three["loss"]


def test_a_model_of_images_does_not_write(trained, capfd):
    assert "does not write" in sentence(capfd, "generate", trained)


def test_metadata_of_a_checkpoint(trained):
    from gpulayers.training.checkpoint import load_checkpoint

    metadata = load_checkpoint(trained / "checkpoint-best.safetensors")[1]
    assert metadata["classes"] == ["above", "below"]
    assert metadata["image"] == [4, 4, 1]
    assert metadata["normalization"]["mean"][0] == pytest.approx(0.5, abs=0.05)
    assert json.dumps(metadata["normalization"])


@pytest.mark.parametrize("damaged", [{"image": None}, {"image": [4, 4]}, {"classes": 3}, {"image": [4, 4, 0]}])
def test_damaged_metadata(trained, damaged):
    from gpulayers.training.run import open_saved

    metadata = {"image": [4, 4, 1], "classes": ["a", "b"]} | damaged
    config = open_saved(trained).config
    with pytest.raises(ValueError, match=r"image|sizes|unpack|channels"):
        vit.ViTTask.rebuild(config, metadata)
