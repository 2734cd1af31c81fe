"""RNN, GRU, LSTM and their cells."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.backend import array_module
from gpulayers.layers.gru import GRU, GRUCell
from gpulayers.layers.layer import Layer
from gpulayers.layers.lstm import LSTM, LSTMCell
from gpulayers.layers.rnn import RNN, RNNCell
from gpulayers.step import Train
from gpulayers.verify.case import Case, LayerCase, Maker
from gpulayers.verify.cases import recurrent_cells

TRAIN = Train(seed=3, step=7, first_sample=5)
INPUT, H = 3, 4


class Joined(Layer):
    """A recurrent layer with all of its outputs in one row, and its states one by one: forward(x, h, c)."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def forward(self, x: Any, *states: Any, train: Train | None = None, **options: Any) -> tuple[Any, Any]:
        given = states if len(states) == 2 else states[0] if states else None
        outputs, saved = self.layer.forward(x, given, train=train, **options)
        row = array_module(x).concatenate([a.reshape(-1) for a in _arrays(outputs)])
        return row, (saved, outputs)

    def backward(self, dy: Any, saved: Any) -> tuple[Any, ...]:
        saved, outputs = saved
        parts, start = [], 0
        for array in _arrays(outputs):
            parts.append(dy[start : start + array.size].reshape(array.shape))
            start += array.size
        return tuple(_arrays(self.layer.backward(_like(outputs, iter(parts)), saved)))


def _arrays(tree: Any) -> Iterator[Any]:
    """The arrays of nested tuples, in order."""
    if isinstance(tree, tuple):
        for part in tree:
            yield from _arrays(part)
    else:
        yield tree


def _like(tree: Any, parts: Iterator[Any]) -> Any:
    """Nested tuples as `tree`, of the arrays `parts`."""
    return tuple(_like(part, parts) for part in tree) if isinstance(tree, tuple) else next(parts)


def layer_cases(rng: np.random.Generator) -> Iterator[Case]:
    both = {"num_layers": 2, "bidirectional": True, "dropout": 0.3}
    forms: dict[str, tuple[dict[str, Any], tuple[int, int], list[int] | None]] = {
        "one step": ({}, (2, 1), None),
        "primes": ({}, (3, 5), None),
        "lengths": ({}, (4, 5), [3, 0, 5, 1]),
        "two layers, both directions, lengths": (both, (3, 4), [2, 4, 0]),
        "no bias": ({"bias": False, "bidirectional": True}, (2, 3), None),
        "empty batch": ({}, (0, 3), None),
        "no steps": ({}, (2, 0), None),
    }
    for name, (how, (B, T), lengths) in forms.items():
        count = how.get("num_layers", 1) * (2 if how.get("bidirectional") else 1)
        for kind in (RNN, GRU, LSTM):
            states = [rng.normal(size=(count, B, H)) for _ in range(2 if kind is LSTM else 1)]
            yield LayerCase(
                layer=kind,
                name=name,
                make=lambda kind=kind, how=how: Joined(kind(INPUT, H, rng=0, **how)),
                inputs=(rng.normal(size=(B, T, INPUT)), *states),
                options={} if lengths is None else {"lengths": np.array(lengths)},
                train=TRAIN,
                storages=("float32", "float16", "bfloat16") if name == "lengths" else ("float32",),
            )


def cell_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, B in (("one row", 1), ("primes", 5), ("empty batch", 0)):
        for kind in (RNNCell, GRUCell, LSTMCell):
            states = [rng.normal(size=(B, H)) for _ in range(2 if kind is LSTMCell else 1)]
            yield LayerCase(
                layer=kind,
                name=name,
                make=lambda kind=kind: Joined(kind(INPUT, H, rng=0)),
                inputs=(rng.normal(size=(B, INPUT)), *states),
            )


MAKERS: list[Maker] = [*recurrent_cells.MAKERS, layer_cases, cell_cases]
