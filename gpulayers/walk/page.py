"""A walk as one self-contained HTML page."""

import importlib.resources
from typing import NamedTuple

import numpy as np

from gpulayers.walk.story import Story
from gpulayers.walk.text import shape, verdict

MOST = 40  # rows and columns that are shown


class Cell(NamedTuple):
    """text: a rounded number. exact: all its digits. colour: background, blue below 0 and red above."""

    text: str
    exact: str
    colour: str


def page(story: Story) -> str:
    """The HTML text: no script, and nothing from elsewhere."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(cells=cells, shape=shape)
    template = importlib.resources.files("gpulayers.walk").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(story=story, verdict=verdict(story))


def cells(array: np.ndarray) -> list[list[Cell]]:
    """The rows of an array: a scalar is one cell, axes before the last two are laid one below the other."""
    array = np.asarray(array)
    floating = array.dtype.kind == "f"
    rows = np.atleast_2d(array).reshape(-1, array.shape[-1] if array.ndim else 1)[:MOST, :MOST]
    largest = float(abs(rows).max(initial=0.0)) if floating else 0.0
    return [[_cell(value, largest, floating) for value in row] for row in rows]


def _cell(value: np.generic, largest: float, floating: bool) -> Cell:
    if not floating:
        return Cell(str(value), str(value), "")
    number = float(value)
    strength = 0.0 if not largest else 0.5 * abs(number) / largest
    hue = "214, 69, 65" if number > 0 else "52, 106, 176"
    return Cell(f"{number:.4g}", repr(number), f"rgba({hue}, {strength:.2f})")
