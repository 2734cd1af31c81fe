import numpy as np
import pytest
from matplotlib.image import imread

from gpulayers.storage import FileError
from gpulayers.training.image_pictures import as_text, draw_attention, draw_confusion


@pytest.mark.parametrize(("count", "channels", "grid"), [(1, 1, (4, 3)), (10, 3, (2, 2)), (3, 2, (1, 1))])
def test_attention_is_drawn(count, channels, grid, rng, tmp_path):
    pixels = rng.uniform(size=(count, 8, 12, channels))
    captions = ["$x_{", "犬", *"abcdefghij"][:count]  # no formula, and no letter of the font
    draw_attention(pixels, rng.uniform(size=(count, *grid)), captions, tmp_path / "a.png", "run $1")
    picture = imread(tmp_path / "a.png")
    assert picture.shape[1] >= 400
    assert picture[..., :3].std() > 0.05


@pytest.mark.parametrize("classes", [2, 10, 25])
def test_confusion_is_drawn(classes, rng, tmp_path):
    counts = rng.integers(0, 9, (classes, classes))
    counts[0] = 0  # a class that no image has
    names = [f"$ class {i}, a long name of" for i in range(classes)]
    draw_confusion(counts, names, tmp_path / "c.png", "title")
    assert imread(tmp_path / "c.png").shape[0] >= 200


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        draw_confusion(np.eye(2, dtype=int), ["a", "b"], tmp_path / "nothing" / "c.png")


def test_images_as_text():
    """A bright diagonal and a full image, side by side under their captions."""
    pixels = np.stack([np.eye(3), np.ones((3, 3))])[..., None]
    assert as_text(pixels, ["first", "second"]).split("\n") == [
        "first   second",
        "@@      @@@@@@",
        "  @@    @@@@@@",
        "    @@  @@@@@@",
    ]


def test_wide_images_are_their_captions():
    assert as_text(np.zeros((2, 3, 33, 1)), ["a", "b"]) == "a\nb"
    assert as_text(np.zeros((0, 3, 3, 1)), []) == ""
    assert as_text(np.ones((1, 1, 20, 3)), ["a"]) == "a\n" + "@" * 20  # one letter a pixel, colours as their mean
