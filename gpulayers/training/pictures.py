"""What all pictures share: Matplotlib's objects without pyplot (no window, no global state, so drawing works in a
thread and beside the user's own), and files that are whole or not there."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulayers.storage import StrPath, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from gpulayers.training.translator import Look


def new_figure(width: float, height: float, dpi: float = 150) -> "Figure":
    """An empty figure; width, height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save_png(figure: "Figure", path: StrPath) -> None:
    """Write the figure; the old picture stays until the new one is whole. Raises FileError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for what the font has not
        FigureCanvasAgg(figure).print_png(picture)
    write_atomically(path, picture.getvalue())


def plain_axes(axes: "Axes") -> None:
    """No frame above and at the right, a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def plot_attention(looks: "Sequence[Look]", path: StrPath, title: str = "") -> None:
    """Write `attention_figure`. Raises FileError."""
    save_png(attention_figure(looks, title), path)


def attention_figure(looks: "Sequence[Look]", title: str = "") -> "Figure":
    """One panel for each look: the answer downwards, the source across; dark is much weight."""
    sizes = [0.6 + 0.2 * max(len(look.answer), 3) for look in looks]
    width = min(16.0, 1.6 + 0.2 * max([len(look.source) for look in looks] + [20]))
    figure = new_figure(width, sum(sizes) + 0.4)
    panels = figure.subplots(len(looks), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, look in zip(panels, looks, strict=True):
        axes.imshow(look.weights, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_xticks(range(len(look.source)), [visible(s) for s in look.source])
        axes.set_yticks(range(len(look.answer)), [visible(s) for s in look.answer])
        axes.tick_params(length=0, labelsize=8)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            as_it_is(label)
        if any(len(s) > 1 for s in look.source[:-1]):
            axes.tick_params(axis="x", rotation=60)
    if title and len(panels):
        as_it_is(panels[0].set_title(title, loc="left", fontsize=10))
    return figure


def as_it_is(text: "Text") -> None:
    """What the user named: a dollar begins no formula."""
    text.set_text(drawable(text.get_text()))
    text.set_parse_math(False)


def drawable(name: str) -> str:
    """With a question mark for each byte of a file's name that is no text: Matplotlib refuses lone surrogates."""
    return name.encode(errors="replace").decode()


def visible(symbol: str) -> str:
    """The symbol, or a sign for white space."""
    return "\u2423" if symbol.isspace() else symbol
