"""The curves of a report as SVG, drawn by Matplotlib."""

import base64
import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpulayers.report.gather import Run
from gpulayers.training.health_plot import health_figure
from gpulayers.training.pictures import as_it_is, new_figure, plain_axes
from gpulayers.training.plot import series, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4c78a8", "#e4572e", "#54a24b", "#b279a2", "#f2a541", "#439894", "#9d755d", "#d67195")
MOST_POINTS = 1000  # of one curve: a page shows no more
PANELS = {  # name in metrics.jsonl -> (title, whether its axis is logarithmic)
    "lr": ("learning rate", False),
    "grad_norm": ("norm of the gradient, before clipping", True),
    "val_accuracy": ("validation accuracy", False),
    "speed": ("units a second", False),
}


class Chart(NamedTuple):
    """uri: the picture, for the src of an <img>. alt: what is to be seen, for those who cannot see it."""

    uri: str
    alt: str


def loss_chart(runs: Sequence[Run]) -> Chart:
    """Training losses, smoothed, and validation losses of all runs."""
    figure = new_figure(9, 4.6)
    axes = figure.subplots()
    for run, colour in zip(runs, colours(runs), strict=True):
        steps, losses = series(run.records, "loss")
        name = f" {run.name}" if run.name.startswith("_") else run.name  # Matplotlib hides what begins with _
        label = name if len(runs) > 1 else "training, smoothed"
        if len(steps):
            if len(runs) == 1:
                _draw(axes, steps, losses, color=colour, alpha=0.3, linewidth=0.7)
            _draw(axes, steps, smooth(losses), color=colour, linewidth=1.5, label=label)
        steps, losses = series(run.records, "val_loss")
        if len(steps):
            label = "validation" if len(runs) == 1 else f"{name}: validation"
            _draw(
                axes,
                steps,
                losses,
                color=colour,
                linewidth=1.1,
                linestyle="--",
                marker="o",
                markersize=3.5,
                label=label,
            )
    axes.set_ylabel("loss (nats)")
    _finish(axes, runs)
    seen = [f"{run.name}: {series(run.records, 'loss')[0].size} training losses" for run in runs]
    return Chart(_as_uri(figure, "loss"), f"Loss over the steps. {'; '.join(seen)}.")


def other_charts(runs: Sequence[Run]) -> list[Chart]:
    """Learning rate, norm of the gradient, accuracy and speed, those that were measured."""
    found = []
    for name, (title, logarithmic) in PANELS.items():
        curves = [_curve(run, name) for run in runs]
        if not any(len(steps) for steps, _ in curves):
            continue
        figure = new_figure(5.6, 2.9)
        axes = figure.subplots()
        for run, colour, (steps, values) in zip(runs, colours(runs), curves, strict=True):
            if len(steps):
                shown = smooth(values) if name in ("grad_norm", "speed") else values
                _draw(axes, steps, shown, color=colour, linewidth=1.3, label=run.name)
        if logarithmic:
            axes.set_yscale("log", nonpositive="mask")
        _finish(axes, runs, legend=False)
        axes.set_title(title, loc="left", fontsize=10)
        found.append(Chart(_as_uri(figure, name), f"{title} over the steps"))
    return found


def health_chart(run: Run) -> Chart:
    """Gradient, activation, dead units and update of each layer."""
    return Chart(_as_uri(health_figure(run.health), "health"), "Health of the layers over the steps")


def as_chart(figure: "Figure", alt: str) -> Chart:
    return Chart(_as_uri(figure, alt), alt)


def colours(runs: Sequence[Run]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(runs))]


def _curve(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    if name != "speed":
        return series(run.records, name)
    found = [series(run.records, f"{units}_per_second") for units in ("tokens", "images")]
    return max(found, key=lambda curve: len(curve[0]))


def _draw(axes: "Axes", steps: np.ndarray, values: np.ndarray, **style: object) -> None:
    if len(steps) > MOST_POINTS:  # the first and the last among them
        chosen = np.unique(np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int))
        steps, values = steps[chosen], values[chosen]
    if len(steps) == 1:
        style = {**style, "marker": "o", "markersize": 4}
    axes.plot(steps, values, **style)  # pyright: ignore[reportArgumentType] a dict of keywords of mixed types


def _finish(axes: "Axes", runs: Sequence[Run], legend: bool = True) -> None:
    axes.set_xlabel("step (batches)")
    axes.locator_params(axis="x", integer=True)
    last = max([run.step for run in runs], default=0) or 1
    axes.set_xlim(-0.02 * last, 1.02 * last)
    plain_axes(axes)
    if not axes.lines:
        axes.text(0.5, 0.5, "no measurement yet", transform=axes.transAxes, ha="center", color="gray")
    elif legend:
        for text in axes.legend(frameon=False, fontsize=8).get_texts():
            as_it_is(text)


def _as_uri(figure: "Figure", salt: str) -> str:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    picture = io.StringIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": salt}):  # the same runs, the same bytes
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for what the font has not
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.getvalue().encode()).decode()}"
