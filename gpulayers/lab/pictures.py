"""The results of a lab as pictures.

All have the same grid: a row for each activation and initialisation, a column for each cure. lab.png shows the loss of
each combination and what fell sick first; the others show a small map of each combination, a row of pixels for each
layer (the first on top) and a column for each look of the ledger.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulayers.training.health import Row, rows_of
from gpulayers.training.pictures import new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]

MAPS = {  # file -> (field of the ledger, words, lowest and highest colour, colours)
    "gradients": ("gradient", "norm of the gradient, power of ten", -6, 3, "viridis"),
    "activations": ("activation", "root mean square of the activation, power of ten", -4, 3, "viridis"),
    "dead": ("dead", "share of dead units, or of values bent flat if that is more", 0, 1, "magma"),
    "updates": ("update", "update over weight, power of ten", -6, 0, "viridis"),
}
FEW = 10  # rows
SICK, NOT_DONE = "#d62728", "#f2f2f2"


def plot_all(results: Results, folder: Path) -> None:
    """lab.png and the four maps. Raises FileError."""
    plot_losses(results, folder / "lab.png")
    for name in MAPS:
        plot_map(results, folder / f"{name}.png", name)


class Grid:
    """Where each combination stands. rows: (activation, init). columns: (around, clip, penalty)."""

    def __init__(self, results: Results) -> None:
        self.rows = list(dict.fromkeys(tuple(result["cell"][:2]) for result in results))
        self.columns = list(dict.fromkeys(tuple(result["cell"][2:]) for result in results))

    def place(self, result: Mapping[str, Any]) -> tuple[int, int]:
        cell = result["cell"]
        return self.rows.index(tuple(cell[:2])), self.columns.index(tuple(cell[2:]))

    def label(self, axes: "Axes", height: float, width: float) -> None:
        """Names at the middle of rows and columns that are so large."""
        words = [" ".join(row) for row in self.rows]
        axes.set_yticks((np.arange(len(words)) + 0.5) * height - 0.5, words)
        cures = ["\n".join(word for word in column if not word.startswith("no ")) for column in self.columns]
        axes.set_xticks((np.arange(len(cures)) + 0.5) * width - 0.5, cures)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)


def plot_losses(results: Results, path: Path) -> None:
    """The loss on the held-out part in colour, and the first sickness in words."""
    grid = Grid(results)
    losses = np.full((len(grid.rows), len(grid.columns)), np.nan)
    for result in results:
        losses[grid.place(result)] = math.inf if result["loss"] is None else result["loss"]
    figure, axes = _figure(grid, 0.95, 0.42)
    finite = losses[np.isfinite(losses)]
    low = float(finite.min()) if finite.size else 0.0
    shown = np.ma.masked_invalid(np.where(np.isposinf(losses), 1e30, losses))
    image = axes.imshow(shown, cmap=_colours("viridis_r"), vmin=low, vmax=low + 2, aspect="auto")
    for result in results:
        row, column = grid.place(result)
        dark = low + 1 < losses[row, column] <= low + 2
        loss = (
            f"{result['loss']:.3g}" if result["loss"] is not None else "stopped" if result["stopped"] else "not finite"
        )
        words = f"{loss}\n{result['sick']['kind'] if result['sick'] else ''}".strip()
        axes.text(column, row, words, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    grid.label(axes, 1, 1)
    _colourbar(figure, grid, image, "loss at the end, nats\n(red: more, or stopped)")
    save_png(figure, path)


def plot_map(results: Results, path: Path, name: str) -> None:
    """The map `name` of MAPS."""
    field, words, low, high, colours = MAPS[name]
    grid = Grid(results)
    tables = {grid.place(result): values_of(result, field) for result in results}
    height = max(len(table) for table in tables.values()) + 2
    width = max(table.shape[1] for table in tables.values()) + 2
    canvas = np.full((len(grid.rows) * height, len(grid.columns) * width), np.nan)
    for (row, column), table in tables.items():
        top, left = row * height + 1, column * width + 1
        canvas[top : top + table.shape[0], left : left + table.shape[1]] = table
    figure, axes = _figure(grid, 0.95, 0.42)
    image = axes.imshow(
        np.ma.masked_invalid(canvas), cmap=_colours(colours), vmin=low, vmax=high, aspect="auto", interpolation="none"
    )
    grid.label(axes, height, width)
    _colourbar(figure, grid, image, f"{words}\n(red: more, or not finite)")
    save_png(figure, path)


def values_of(result: Mapping[str, Any], field: str) -> np.ndarray:
    """(layers, looks): logarithms, or shares; 1e30 for what is not finite, NaN where there is nothing."""
    looks = [rows_of(look) for look in result["health"]]
    layers = list(dict.fromkeys(layer for look in looks for layer in look))
    return np.array([[_value(look.get(layer, Row()), field) for look in looks] for layer in layers])


def _value(row: Row, field: str) -> float:
    value = getattr(row, field)
    if field == "dead":
        value = max((v for v in (row.dead, row.saturated) if v is not None), default=None)
    if value is None:
        return math.nan
    if not math.isfinite(value):
        return 1e30
    return value if field == "dead" else math.log10(max(value, 1e-30))


def _figure(grid: Grid, width: float, height: float) -> "tuple[Figure, Axes]":
    """For cells that are so large, in inches."""
    above = 1.2 if len(grid.rows) > FEW else 2.2
    figure = new_figure(max(5.5, 2.6 + width * len(grid.columns)), above + height * len(grid.rows), dpi=120)
    return figure, figure.subplots()


def _colourbar(figure: "Figure", grid: Grid, image: Any, words: str) -> None:
    """Below a grid of few rows, beside which its words have no room."""
    if len(grid.rows) <= FEW:
        figure.colorbar(image, label=words, extend="max", location="bottom", aspect=40)
    else:
        figure.colorbar(image, label=words.replace("\n", " "), extend="max", shrink=0.6)


def _colours(name: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(over=SICK, bad=NOT_DONE)
