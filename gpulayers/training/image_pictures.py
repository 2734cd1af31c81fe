"""Pictures of a classifier of images: where it looks, what it takes for what; and images as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpulayers.storage import StrPath
from gpulayers.training.pictures import as_it_is, drawable, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = " .:-=+*#%@"
WIDEST = 32  # pixels of an image that is shown as text
COUNTED = 20  # classes up to which the numbers stand in the confusion matrix


def draw_attention(
    pixels: np.ndarray, attention: np.ndarray, captions: Sequence[str], png_path: StrPath, title: str = ""
) -> None:
    """Each image above the attention that lies on its patches, bright where the model looks.

    pixels: (N, H, W, C) in 0..1. attention: (N, rows, cols), each image with a scale of its own. Raises FileError.
    """
    count, height, width, _ = pixels.shape
    figure = new_figure(max(4.0, 0.9 * count), min(10.0, 0.7 + 1.8 * height / width), dpi=100)
    axes = figure.subplots(2, count, squeeze=False)
    if title:
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    for i, caption in enumerate(captions):
        _show(axes[0, i], pixels[i])
        axes[0, i].set_title(_short(caption), fontsize=8)
        _show(axes[1, i], pixels[i])
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes[1, i].imshow(attention[i], cmap="inferno", alpha=0.75, extent=extent, interpolation="nearest", vmin=0)
    _save(figure, png_path)


def _show(axes: "Axes", image: np.ndarray) -> None:
    """One channel, or red, green and blue; any other number of channels as their mean."""
    image = image if image.shape[2] == 3 else image.mean(axis=2)
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def draw_confusion(counts: np.ndarray, classes: Sequence[str], png_path: StrPath, title: str = "") -> None:
    """counts: (classes, classes), a row for each true class, a column for what it was taken for. Raises FileError."""
    side = min(9.0, 2.0 + 0.32 * len(classes))
    figure = new_figure(side, side, dpi=100)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    if title:
        axes.set_title(title, fontsize=10, loc="left")
    if len(classes) <= COUNTED:
        names = [_short(name) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(len(classes)), names)
        for row, col in np.argwhere(counts > 0).tolist():
            color = "white" if share[row, col] > 0.5 else "black"
            axes.text(col, row, str(counts[row, col]), ha="center", va="center", fontsize=8, color=color)
    _save(figure, png_path)


def _short(name: str) -> str:
    name = drawable(name)
    return name if len(name) <= 12 else name[:11] + "…"


def _save(figure: "Figure", png_path: StrPath) -> None:
    """Names of classes are the user's."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        as_it_is(text)
    save_png(figure, png_path)


def as_text(pixels: np.ndarray, captions: Sequence[str]) -> str:
    """Images side by side, each under its caption; of wide ones the captions alone. pixels: (N, H, W, C) in 0..1."""
    if not len(pixels) or pixels.shape[2] > WIDEST:
        return "\n".join(captions)
    stretch = 2 if pixels.shape[2] <= WIDEST // 2 else 1  # a letter is about twice as high as it is wide
    levels = np.rint(np.clip(pixels.mean(axis=3), 0, 1) * (len(INK) - 1)).astype(int)
    pictures = [["".join(INK[level] * stretch for level in row) for row in image] for image in levels.tolist()]
    width = max(max(map(len, captions)), pixels.shape[2] * stretch) + 2
    rows = [captions, *zip(*pictures, strict=True)]
    return "\n".join("".join(cell.ljust(width) for cell in row).rstrip() for row in rows)
