"""The combinations: {activation} x {initial values} x {what is around a layer} x {clipping} x {penalty}."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from gpulayers.models.feedforward import ACTIVATIONS, AROUND
from gpulayers.training.options import ConfigError, suggestion

INITS = ("naive", "xavier", "he")
CLIPS = ("no clip", "clip")
PENALTIES = ("no penalty", "l1", "l2")
AXES = {"activation": tuple(ACTIVATIONS), "init": INITS, "around": AROUND, "clip": CLIPS, "penalty": PENALTIES}


class Cell(NamedTuple):
    """One combination. activation, init, around: `FeedForwardConfig`'s. clip: of the whole gradient, by its norm."""

    activation: str
    init: str
    around: str = "plain"
    clip: str = "no clip"
    penalty: str = "no penalty"

    def __str__(self) -> str:
        return ", ".join(self)


def full_grid() -> list[Cell]:
    """All 360."""
    return [Cell(*values) for values in product(*AXES.values())]


def default_grid() -> list[Cell]:
    """A part that tells the most in two minutes, each cure alone: every activation with every initialisation; what is
    around a layer, against the naive one, which needs a cure, and where none is needed; clipping; penalties.
    """
    healthy = (("tanh", "xavier"), ("relu", "he"))
    cells = [Cell(activation, init) for activation in ACTIVATIONS for init in INITS]
    cells += [Cell(activation, "naive", around) for activation in ACTIVATIONS for around in AROUND[1:]]
    cells += [Cell(*pair, around) for pair in healthy for around in AROUND[1:]]
    cells += [Cell(activation, init, clip="clip") for activation in ("tanh", "relu") for init in INITS]
    return cells + [Cell(*pair, penalty=penalty) for pair in healthy for penalty in PENALTIES[1:]]


def only(cells: Iterable[Cell], words: Iterable[str]) -> list[Cell]:
    """The cells that agree with `words`: of each axis that has a word, one of its words. Raises ConfigError."""
    words = list(words)
    known = {value: axis for axis, values in AXES.items() for value in values}
    for word in words:
        if word not in known:
            close = suggestion(word, known) or f"; choose from {', '.join(known)}"
            raise ConfigError(f"--only: unknown word {word!r}{close}")
    wanted = {axis: {word for word in words if known[word] == axis} for axis in AXES}
    found = [cell for cell in cells if all(not some or getattr(cell, axis) in some for axis, some in wanted.items())]
    if not found:
        raise ConfigError(f"--only {' '.join(words)}: no combination of this grid has all of that; try --full")
    return found
