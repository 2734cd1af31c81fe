import builtins
import contextlib
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from gpulayers.data import DataError
from gpulayers.data.images import load_images


def png(path, pixels, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.asarray(pixels))
    (picture if mode is None else picture.convert(mode)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Three cats and two dogs, grey, 2 x 3."""
    for name, count in (("cat", 3), ("dog", 2)):
        for i in range(count):
            png(tmp_path / "pets" / name / f"{i}.png", np.full((2, 3), 51 * i + (name == "dog"), np.uint8))
    return tmp_path / "pets"


@pytest.fixture
def npz(tmp_path):
    """Writes images and labels, and gives the file's name."""

    def write(**arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path / "data.npz"

    return write


def refused(path, sentence, **options):
    with pytest.raises(DataError, match=sentence) as error:
        load_images(path, **options)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- digits


def test_digits():
    images = load_images()
    assert images.pixels.shape == (1797, 8, 8, 1)
    assert images.pixels.dtype == np.float32
    assert (images.pixels.min(), images.pixels.max()) == (0, 1)
    assert images.classes == list("0123456789")
    assert images.labels[:10].tolist() == list(range(10))
    assert images.size == "8 x 8 x 1"


def test_digits_without_scikit_learn(monkeypatch):
    def missing(name, *rest, real=builtins.__import__):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        DataError, match=r"scikit-learn is not installed: run pip install 'scikit-learn>=1\.5', or name"
    ):
        load_images()


# ---------------------------------------------------------------------------------------------- a folder


def test_a_folder_of_class_folders(folder):
    png(folder / "cat" / "notes.txt.PNG", np.full((2, 3), 255, np.uint8))  # any case
    (folder / "cat" / "notes.txt").write_text("not a picture")
    (folder / ".hidden").mkdir()
    (folder / "readme.md").write_text("not a class")
    images = load_images(folder)
    assert images.classes == ["cat", "dog"]
    assert images.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert images.pixels.shape == (6, 2, 3, 1)
    assert images.pixels[:, 0, 0, 0] == pytest.approx([0, 0.2, 0.4, 1, 1 / 255, 52 / 255])


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)], ids=str
)
def test_kinds_of_png(folder, mode, channels):
    """White stays 1 in all of them; opaque alpha is no channel."""
    for file in [*folder.glob("*/*.png")]:
        png(file, np.full((2, 3), 255, np.uint8), mode)
    pixels = load_images(folder).pixels
    assert pixels.shape == (5, 2, 3, channels)
    assert (pixels == 1).all()


def test_colours_keep_their_place_and_grey_joins_them(folder):
    png(folder / "cat" / "0.png", np.broadcast_to(np.array([255, 102, 0], np.uint8), (2, 3, 3)))
    pixels = load_images(folder).pixels
    assert pixels[0, 1, 2] == pytest.approx([1, 0.4, 0])
    assert pixels[1, 1, 2] == pytest.approx([0.2, 0.2, 0.2])


def test_16_bits_of_grey(folder):
    png(folder / "cat" / "0.png", np.full((2, 3), 13107, np.uint16))
    assert load_images(folder).pixels[0, 0, 0, 0] == pytest.approx(0.2)


def test_the_digest_tells_data_apart(folder):
    first = load_images(folder).digest
    assert load_images(folder).digest == first
    png(folder / "cat" / "0.png", np.ones((2, 3), np.uint8))
    second = load_images(folder).digest
    (folder / "dog").rename(folder / "wolf")
    assert len({first, second, load_images(folder).digest}) == 3


def test_a_class_with_one_picture(folder):
    (folder / "dog" / "1.png").unlink()
    refused(folder, r"dog holds one picture, 0.png: at least two are needed, one to train on and one to measure on")
    assert len(load_images(folder, least=1).labels) == 4


def test_one_class(folder):
    for file in [*(folder / "dog").iterdir()]:
        file.unlink()
    (folder / "dog").rmdir()
    refused(folder, "has one class, 'cat': there is nothing to tell apart")


def test_an_empty_folder(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds nothing: it takes one folder of PNG files for each class")
    refused(folder / "cat", "holds 3 files, but no folders: it takes one folder of PNG files for each class")
    (folder / "fox").mkdir()
    refused(folder, "class folder .*fox holds no PNG file")


def test_an_image_of_another_size(folder):
    png(folder / "dog" / "1.png", np.zeros((3, 3), np.uint8))
    refused(folder, r"dog.1.png is 3 x 3 pixels, .*cat.0.png is 2 x 3: all must have one size")


def test_a_broken_png(folder):
    file = folder / "dog" / "1.png"
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for broken in (b"", b"not a picture", whole[:20], whole[:-20], whole.replace(b"IDAT", b"IDAX")):
        file.write_bytes(broken)
        refused(folder, "dog.1.png is not a whole PNG file: ")
    for _ in range(100):  # whatever is damaged: a sentence (or a picture), and no other error
        content = bytearray(whole)
        content[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        file.write_bytes(content)
        with contextlib.suppress(DataError):
            load_images(folder)


def test_a_jpeg_called_png(folder):
    Image.fromarray(np.zeros((2, 3), np.uint8)).save(folder / "dog" / "1.png", format="JPEG")
    refused(folder, "dog.1.png is not a whole PNG file")


def test_transparent_pixels(folder):
    Image.new("RGBA", (3, 2), (255, 0, 0, 128)).save(folder / "dog" / "1.png")
    refused(folder, "dog.1.png has transparent pixels: lay it on a background first")


def test_nothing_there(tmp_path):
    refused(tmp_path / "nothing", "does not exist")


# ---------------------------------------------------------------------------------------------- .npz


LABELS = np.array([7, -1, 7, -1])


def test_npz(npz):
    images = load_images(npz(images=np.full((4, 2, 3), 51, np.uint8), labels=LABELS))
    assert images.pixels.shape == (4, 2, 3, 1)
    assert images.pixels.dtype == np.float32
    assert np.allclose(images.pixels, 0.2)
    assert images.classes == ["-1", "7"]
    assert images.labels.tolist() == [1, 0, 1, 0]
    colours = np.random.default_rng(0).uniform(size=(4, 2, 3, 3))
    images = load_images(npz(images=colours, labels=np.array(["b", "a", "b", "a"])))
    assert np.allclose(images.pixels, colours)
    assert images.classes == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": np.zeros((4, 2), np.uint8)}, r"must have shape \(N, H, W\) or \(N, H, W, C\), got \(4, 2\)"),
        ({"images": np.zeros((0, 2, 2), np.uint8)}, r"or \(N, H, W, C\), got \(0, 2, 2\)"),
        ({"images": np.full((4, 2, 2), 256)}, "integers in 0..255 or floating in 0..1, got int64 in 256..256"),
        ({"images": np.full((4, 2, 2), -1)}, r"got int64 in -1..-1"),
        ({"images": np.full((4, 2, 2), 16.0)}, r"or floating in 0..1, got float64 in 16.0..16.0"),
        ({"images": np.full((4, 2, 2), np.nan)}, "got float64 in nan..nan"),
        ({"images": np.zeros((4, 2, 2), complex)}, "got complex128"),
        ({"labels": LABELS[:3]}, r"labels in .* must have shape \(4,\), one for each image, got \(3,\)"),
        ({"labels": LABELS / 2}, "labels in .* must be whole numbers or texts, got float64"),
        ({"labels": np.array([1, 2, 2, 2])}, "class 1 of .* has one image: at least two are needed"),
        ({"labels": np.zeros(4, int)}, "has one class, '0': there is nothing to tell apart"),
        ({"labels": None}, "has no labels: it takes the arrays images and labels"),
        ({"images": None, "labels": None}, "has no images and no labels"),
        ({"labels": np.array([{}, 1, 2, 3], object)}, "is not an .npz file of plain arrays"),
    ],
)
def test_wrong_npz(npz, change, sentence):
    arrays = {"images": np.zeros((4, 2, 2), np.uint8), "labels": LABELS} | change
    refused(npz(**{name: array for name, array in arrays.items() if array is not None}), sentence)


def test_files_that_are_no_npz(tmp_path, npz):
    path = npz(images=np.zeros((4, 2, 2), np.uint8), labels=LABELS)
    whole = path.read_bytes()
    for broken in (b"", b"not an archive", whole[: len(whole) // 2], whole[:200]):
        path.write_bytes(broken)
        refused(path, "is not an .npz file")
    np.save(tmp_path / "data.npy", np.zeros(3))
    refused(tmp_path / "data.npy", "is not an .npz file")


def test_an_archive_whose_members_numpy_has_not_written(tmp_path):
    for suffix in ("", ".npy"):
        path = tmp_path / f"other{suffix}.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"images{suffix}", b"x")
            archive.writestr(f"labels{suffix}", b"y")
        with pytest.raises(
            DataError, match=r"is not an .npz file of plain arrays: its members are not written by NumPy"
        ):
            load_images(path)


def test_a_class_folder_whose_name_is_no_text(tmp_path):
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    except OSError:
        pytest.skip("the file system takes text only")
    with pytest.raises(DataError, match="has a name that is not UTF-8 text"):
        load_images(tmp_path)


def test_a_pipe_among_the_pictures(folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png is no file"):
        load_images(folder)
