"""Labelled images: scikit-learn's digits, a folder of PNG files in class folders, or an .npz file.

All stay in memory, as float32 between 0 and 1.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpulayers.data.text import DataError
from gpulayers.remedies import INSTALL
from gpulayers.storage import StrPath

DIGITS = "scikit-learn's digits"
FORMATS = {"1", "L", "LA", "I;16", "I;16B", "I;16L", "I"}  # Pillow's names for grey pictures; the others have colours


class Images(NamedTuple):
    """name: for people. pixels: (N, H, W, C) float32 in 0..1. labels: (N,) int64, the place of each image's class in
    `classes`. digest: SHA-256 of all that, so that a resumed run can tell whether it still reads the same data."""

    name: str
    pixels: np.ndarray
    labels: np.ndarray
    classes: list[str]
    digest: str

    @property
    def size(self) -> str:
        """'8 x 8 x 1': height, width and channels."""
        return " x ".join(str(n) for n in self.pixels.shape[1:])


def load_images(path: StrPath | None = None, least: int = 2) -> Images:
    """The images of a folder or an .npz file; None takes scikit-learn's digits, 1797 grey ones of 8 x 8.

    A folder holds one folder for each class, and that the PNG files of the class: grey ones (one channel), or red,
    green and blue (three; grey ones among them are turned into such). An .npz file holds `images`, (N, H, W) or
    (N, H, W, C), integers in 0..255 or floating in 0..1, and `labels`, (N,), whole numbers or texts.

    least: images that every class needs at least; 2 to train, 1 to train on and 1 to measure on. Raises DataError, one
    sentence that names the file.
    """
    if path is None:
        return _images(DIGITS, *digits())
    path = Path(path)
    try:
        if path.is_dir():
            pixels, labels, classes = read_folder(path, least)
        elif path.is_file():
            pixels, labels, classes = read_npz(path, least)
        else:
            raise DataError(f"{path} {'is no file and no folder' if path.exists() else 'does not exist'}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(classes) < least:
        raise DataError(f"{path} has one class, {classes[0]!r}: there is nothing to tell apart")
    return _images(os.fspath(path), pixels, labels, classes)


def _images(name: str, pixels: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> Images:
    digest = hashlib.sha256(repr((pixels.shape, list(classes))).encode())
    for array in (pixels.astype("<f4", copy=False), labels.astype("<i8", copy=False)):
        digest.update(array.tobytes())
    return Images(name, pixels, labels, list(classes), digest.hexdigest())


# ------------------------------------------------------------------------------------------------ the three sources

Parts = tuple[np.ndarray, np.ndarray, list[str]]  # pixels, labels, classes


def digits() -> Parts:
    """Handwritten digits, each a count of ink in 0..16. Source: Alpaydin and Kaynak, Cascading classifiers, 1998."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the default images are scikit-learn's digits, and scikit-learn is not installed: "
            f"run {INSTALL['examples']}, or name images of your own by --data"
        ) from error
    rows, labels = load_digits(return_X_y=True)  # 64 numbers a row
    pixels = (rows.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    return pixels, labels.astype(np.int64), [str(digit) for digit in range(10)]


ONE_IS_TOO_FEW = "at least two are needed, one to train on and one to measure on"


def read_folder(folder: Path, least: int) -> Parts:
    """One folder for each class, in the order of their names; files other than *.png are passed over."""
    inside = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    classes = [entry for entry in inside if entry.is_dir()]
    if not classes:
        found = f"{len(inside)} files, but no folders" if inside else "nothing"
        raise DataError(f"{folder} holds {found}: it takes one folder of PNG files for each class")
    pictures, labels = [], []
    first: tuple[Path, np.ndarray] | None = None
    for label, class_folder in enumerate(classes):
        if not is_text(class_folder.name):
            raise DataError(f"class folder {os.fsencode(class_folder)!r} has a name that is not UTF-8 text")
        files = sorted(file for file in class_folder.iterdir() if file.suffix.lower() == ".png")
        if not files:
            raise DataError(f"class folder {class_folder} holds no PNG file")
        if len(files) < least:
            raise DataError(f"class folder {class_folder} holds one picture, {files[0].name}: {ONE_IS_TOO_FEW}")
        for file in files:
            if not file.is_file():  # a pipe would keep us waiting for ever
                raise DataError(f"{file} is no file")
            picture = read_png(file)
            first = first or (file, picture)
            if picture.shape[:2] != first[1].shape[:2]:
                raise DataError(
                    f"{file} is {_size(picture)} pixels, {first[0]} is {_size(first[1])}: all must have one size"
                )
            pictures.append(picture)
            labels.append(label)
    channels = max(picture.shape[2] for picture in pictures)
    shape = (*pictures[0].shape[:2], channels)
    pixels = np.stack([np.broadcast_to(picture, shape) for picture in pictures])  # grey: three times the same
    return pixels, np.array(labels, np.int64), [entry.name for entry in classes]


def is_text(name: str) -> bool:
    """Whether the name of a file is text; otherwise Python keeps its bytes as lone surrogates, which no font has."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[0]} x {picture.shape[1]}"


def read_png(file: Path) -> np.ndarray:
    """(H, W, 1) of a grey picture, (H, W, 3) of a coloured one, float32 in 0..1. Raises DataError."""
    from PIL import Image

    content = file.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            picture.verify()  # the checksums, up to the end of the file; after that it must be opened again
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            grey = picture.mode in FORMATS
            if picture.has_transparency_data:
                alpha = picture.convert("RGBA").getchannel("A")
                if alpha.getextrema()[0] != 255:
                    raise DataError(f"{file} has transparent pixels: lay it on a background first")
            if picture.mode.startswith("I"):  # 16 bits a pixel
                return (np.asarray(picture, np.float32) / 65535)[..., None]
            pixels = np.asarray(picture.convert("L" if grey else "RGB"), np.float32) / 255
    except DataError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for broken files: OSError, SyntaxError, struct.error, ...
        raise DataError(f"{file} is not a whole PNG file: {str(error) or type(error).__name__}") from error
    return pixels[..., None] if grey else pixels


def read_npz(path: Path, least: int) -> Parts:
    """`images` and `labels` of a file that `numpy.savez` wrote."""
    try:
        with path.open("rb") as stream:  # NumPy would leave a file of its own open where it is broken
            if stream.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):  # those of a zip archive
                raise DataError(f"{path} is not an .npz file")
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
            if missing := [name for name in ("images", "labels") if name not in file.files]:
                raise DataError(f"{path} has no {' and no '.join(missing)}: it takes the arrays images and labels")
            images, labels = file["images"], file["labels"]
            if not (isinstance(images, np.ndarray) and isinstance(labels, np.ndarray)):  # bytes, of another archive
                raise DataError(f"{path} is not an .npz file of plain arrays: its members are not written by NumPy")
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib, ast and NumPy each have errors of their own for broken files
        raise DataError(f"{path} is not an .npz file of plain arrays: {error}") from error
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(f"images in {path} must have shape (N, H, W) or (N, H, W, C), got {images.shape}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"labels in {path} must have shape ({len(images)},), one for each image, got {labels.shape}")
    if labels.dtype.kind not in "iuUb":
        raise DataError(f"labels in {path} must be whole numbers or texts, got {labels.dtype}")
    names, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if counts.min() < least:
        raise DataError(f"class {names[counts.argmin()].item()!r} of {path} has one image: {ONE_IS_TOO_FEW}")
    pixels = images if images.ndim == 4 else images[..., None]
    return _between_0_and_1(pixels, path), places.astype(np.int64), [str(name) for name in names.tolist()]


def _between_0_and_1(pixels: np.ndarray, path: Path) -> np.ndarray:
    most = 255 if pixels.dtype.kind in "iu" else 1
    if pixels.dtype.kind not in "iufb":
        raise DataError(f"images in {path} must be integers in 0..255 or floating in 0..1, got {pixels.dtype}")
    smallest, largest = pixels.min(), pixels.max()
    if not (smallest >= 0 and largest <= most):  # so written, NaN is refused too
        raise DataError(
            f"images in {path} must be integers in 0..255 or floating in 0..1, "
            f"got {pixels.dtype} in {smallest}..{largest}"
        )
    return np.ascontiguousarray(pixels, np.float32) / np.float32(most)
