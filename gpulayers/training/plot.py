"""The loss curve of a run as a picture, with the accuracy where it is measured."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulayers.storage import StrPath
from gpulayers.training.metrics import is_finite, read_metrics
from gpulayers.training.pictures import as_it_is, new_figure, plain_axes, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TRAIN, VALIDATION, ACCURACY, RATE = "#4c78a8", "#e4572e", "#8d6cab", "#72b28a"


def plot_loss(metrics: StrPath | Sequence[Mapping[str, Any]], png_path: StrPath, title: str = "") -> None:
    """Draw losses, validation accuracy and learning rate over the steps; metrics: a metrics file or its records.

    Works while a run is going, and with no record at all. The old picture stays until the new one is whole. Raises
    FileError.
    """
    records = read_metrics(metrics) if isinstance(metrics, str | os.PathLike) else metrics
    figure = new_figure(8, 5)
    loss_axes, rate_axes = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    _draw_loss(loss_axes, records)
    _draw_rate(rate_axes, records)
    last = max((record["step"] for record in records), default=0) or 1
    rate_axes.set_xlim(-0.02 * last, 1.02 * last)
    rate_axes.locator_params(axis="x", integer=True)
    if title:
        as_it_is(loss_axes.set_title(title, loc="left", fontsize=11))
    for axes in (loss_axes, rate_axes):
        plain_axes(axes)
    save_png(figure, png_path)


def _draw_loss(axes: "Axes", records: Sequence[Mapping[str, Any]]) -> None:
    steps, losses = series(records, "loss")
    if len(steps) >= 20:
        axes.plot(steps, losses, color=TRAIN, alpha=0.3, linewidth=0.7)
        axes.plot(steps, smooth(losses), color=TRAIN, linewidth=1.6, label="training (smoothed)")
    elif len(steps):
        axes.plot(steps, losses, color=TRAIN, linewidth=1.6, label="training", marker="" if len(steps) > 1 else ".")
    steps, losses = series(records, "val_loss")
    if len(steps):
        label = f"validation (last {losses[-1]:.3f}, best {losses.min():.3f})"
        axes.plot(steps, losses, color=VALIDATION, linewidth=1, marker="o", markersize=4, label=label)
    axes.set_ylabel("loss (nats)")
    handles = axes.get_legend_handles_labels()[0]
    accuracy = _draw_accuracy(axes, records)
    if handles or accuracy:  # losses fall and accuracies rise: the middle is free
        axes.legend(handles=[*handles, *accuracy], frameon=False, loc="center right" if accuracy else "best")
    else:
        axes.text(0.5, 0.5, "no measurement yet", transform=axes.transAxes, ha="center", color="gray")


def _draw_accuracy(axes: "Axes", records: Sequence[Mapping[str, Any]]) -> "list[Line2D]":
    """On an axis of its own to the right, from 0 to 1. Returns the lines: none where nothing was measured."""
    steps, values = series(records, "val_accuracy")
    if not len(steps):
        return []
    right = axes.twinx()
    right.set_ylim(0, 1.02)
    right.set_ylabel("accuracy")
    right.spines["top"].set_visible(False)
    label = f"validation accuracy (last {values[-1]:.3f}, best {values.max():.3f})"
    return right.plot(steps, values, color=ACCURACY, linewidth=1, linestyle="--", marker="s", markersize=3, label=label)


def _draw_rate(axes: "Axes", records: Sequence[Mapping[str, Any]]) -> None:
    steps, rates = series(records, "lr")
    axes.plot(steps, rates, color=RATE, linewidth=1.4, marker="." if len(steps) == 1 else "")
    axes.set_ylabel("learning rate")
    axes.set_xlabel("step (batches)")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))


def series(records: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of the records that have a finite number called `name`."""
    pairs = [(r["step"], r[name]) for r in records if is_finite(r.get(name))]
    return np.array([step for step, _ in pairs]), np.array([value for _, value in pairs], np.float64)


def smooth(values: np.ndarray) -> np.ndarray:
    """Mean over a fiftieth of the curve around each point, so that the smoothed curve does not lag behind.

    Towards the start the window shrinks evenly, because the curve is steep there; at the end it is cut off.
    """
    index = np.arange(len(values))
    half = np.minimum(index, max(2, len(values) // 100))
    stop = np.minimum(index + half + 1, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[stop] - total[index - half]) / (stop - index + half)
