"""The health of the layers over the steps as a picture."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulayers.storage import StrPath
from gpulayers.training.health import Row, rows_of
from gpulayers.training.metrics import read_metrics
from gpulayers.training.pictures import as_it_is, new_figure, plain_axes, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {  # what -> (its title, whether its axis is logarithmic)
    "gradient": ("norm of the gradient", True),
    "activation": ("root mean square of the activation", True),
    "dead": ("dead units; dashed: values bent flat (%)", False),
    "update": ("update over weight", True),
}
MOST_NAMES = 24  # in the legend


def plot_health(health: StrPath | Sequence[Mapping[str, Any]], png_path: StrPath, title: str = "") -> None:
    """Draw gradient, activation, dead units and update of each layer over the steps, the first layer in dark blue, the
    last in yellow. health: a health.jsonl or its records. What is not finite is left out. Raises FileError."""
    records = read_metrics(health) if isinstance(health, str | os.PathLike) else health
    save_png(health_figure(records, title), png_path)


def health_figure(records: Sequence[Mapping[str, Any]], title: str = "") -> "Figure":
    """What `plot_health` writes."""
    table = [(record["step"], rows_of(record)) for record in records]
    names = list(dict.fromkeys(name for _, rows in table for name in rows))
    figure = new_figure(10, 6.5)
    axes = figure.subplots(2, 2, sharex=True).ravel()
    for panel, (what, (words, logarithmic)) in zip(axes, PANELS.items(), strict=True):
        _draw(panel, table, names, what)
        panel.set_title(words, fontsize=9, loc="left")
        if logarithmic:
            panel.set_yscale("log", nonpositive="mask")
        else:
            panel.set_ylim(-3, 103)
        plain_axes(panel)
    for panel in axes[2:]:
        panel.set_xlabel("step (batches)")
        panel.locator_params(axis="x", integer=True)
    handles, labels = axes[1].get_legend_handles_labels()
    if labels:
        figure.legend(handles[:MOST_NAMES], labels[:MOST_NAMES], loc="outside right upper", frameon=False, fontsize=7)
    if title:
        as_it_is(figure.suptitle(title, x=0.01, ha="left", fontsize=11))
    return figure


def _draw(axes: "Axes", table: Sequence[tuple[int, Mapping[str, Row]]], names: Sequence[str], what: str) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 0.95, len(names)))
    for name, colour in zip(names, colours, strict=True):
        for field, dashes in ((what, "-"), *((("saturated", "--"),) if what == "dead" else ())):
            points = [(step, getattr(rows[name], field)) for step, rows in table if name in rows]
            points = [(step, value) for step, value in points if value is not None and math.isfinite(value)]
            if points:
                steps, values = np.array(points).T
                marker = "." if len(points) == 1 else ""
                scale = 100 if what == "dead" else 1
                axes.plot(steps, scale * values, dashes, color=colour, linewidth=1.2, marker=marker, label=name)
