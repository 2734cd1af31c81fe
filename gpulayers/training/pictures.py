"""What all pictures share: Matplotlib's objects without pyplot (no window, no global state, so drawing works in a
thread and beside the user's own), and files that are whole or not there."""

import io
from typing import TYPE_CHECKING

from gpulayers.storage import StrPath, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, dpi: float = 150) -> "Figure":
    """An empty figure; width, height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save_png(figure: "Figure", path: StrPath) -> None:
    """Write the figure; the old picture stays until the new one is whole. Raises FileError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    write_atomically(path, picture.getvalue())


def plain_axes(axes: "Axes") -> None:
    """No frame above and at the right, a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
