"""Recurrent layers with flat inputs and outputs, as `check_layer` takes them."""

from typing import Any

from gpulayers.layers.layer import Layer
from gpulayers.step import Train


def flat(tree: Any) -> tuple:
    """The arrays of nested tuples, in order."""
    return tuple(a for part in tree for a in flat(part)) if isinstance(tree, tuple) else (tree,)


class Flat(Layer):
    """layer(x, state) or layer(x) with the states of pairs side by side: forward(x, h, c) -> (y, h_n, c_n)."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def forward(self, x: Any, *state: Any, train: Train | None = None, **options: Any) -> tuple[tuple, Any]:
        if state:
            options["state" if not hasattr(self.layer, "cells") else "h0"] = state if len(state) == 2 else state[0]
        y, saved = self.layer.forward(x, train=train, **options)
        return flat(y), (saved, isinstance(y, tuple) and isinstance(y[-1], tuple))

    def backward(self, dy: Any, saved: Any) -> tuple:
        saved, nested = saved
        dy = (dy[0], dy[1:]) if nested else dy[0] if len(dy) == 1 else dy
        return flat(self.layer.backward(dy, saved))
