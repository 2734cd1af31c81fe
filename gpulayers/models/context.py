"""Contexts: what an encoder says of a whole source in one vector.

    last    the forward direction's final state of the last layer                               (B, H)
    both    the final states of both directions of the last layer, side by side                 (B, 2 H)
    mean    mean of the states over the source's own positions                                  (B, M)
    max     maximum of the states over them, for each number of a state on its own              (B, M)

memory: (B, S, M), the last layer's states, M being H times the number of directions. final: (layers directions, B, H).
lengths: (B,), int32. The context of a source of length 0 is 0 (last and both: as its final state, the initial one).

`backward(dcontext, saved)` gives the gradients of memory and of final; None for the one that took no part.

Sources: Sutskever, Vinyals and Le, 2014 (last); Schuster and Paliwal, Bidirectional recurrent neural networks, 1997
(both); Conneau, Kiela, Schwenk, Barrault and Bordes, Supervised learning of universal sentence representations, 2017,
section 3.2 (mean, max).
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, zeros
from gpulayers.layers.layer import Layer
from gpulayers.ops.matmul import matmul
from gpulayers.step import Train

Gradients = tuple[Array, Array]


class LastState(Layer):
    """saved: the shape of final, and the number of directions."""

    def forward(self, memory: Array, final: Array, lengths: Array, train: Train | None = None) -> tuple[Array, Any]:
        directions = memory.shape[2] // final.shape[2]
        return final[-directions], (final.shape, directions)

    def backward(self, dy: Array, saved: Any) -> Gradients:
        shape, directions = saved
        dfinal = zeros(shape, dy.dtype, like=dy)
        dfinal[-directions] = dy
        return None, dfinal


class BothStates(Layer):
    """saved: the shape of final."""

    def forward(self, memory: Array, final: Array, lengths: Array, train: Train | None = None) -> tuple[Array, Any]:
        return array_module(final).concatenate([final[-2], final[-1]], axis=1), final.shape

    def backward(self, dy: Array, saved: Any) -> Gradients:
        dfinal = zeros(saved, dy.dtype, like=dy)
        dfinal[-2], dfinal[-1] = dy[:, : saved[2]], dy[:, saved[2] :]
        return None, dfinal


class MeanState(Layer):
    """saved: each position's share, 1 / length or 0, (B, S)."""

    def forward(self, memory: Array, final: Array, lengths: Array, train: Train | None = None) -> tuple[Array, Any]:
        xp, lengths = array_module(memory), lengths[:, None]
        each = 1 / xp.maximum(lengths, 1).astype(memory.dtype)
        share = xp.where(xp.arange(memory.shape[1]) < lengths, each, xp.zeros_like(each))  # (B, S)
        return matmul(share[:, None], memory)[:, 0], share

    def backward(self, dy: Array, saved: Any) -> Gradients:
        return saved[:, :, None] * dy[:, None], None


class MaxState(Layer):
    """saved: where each maximum was found, (B, M), -1 in a source of length 0; and S."""

    def forward(self, memory: Array, final: Array, lengths: Array, train: Train | None = None) -> tuple[Array, Any]:
        xp, (B, S, M) = array_module(memory), memory.shape
        if S == 0:
            return zeros((B, M), memory.dtype, like=memory), (xp.full((B, M), -1), 0)
        seen = xp.arange(S) < lengths[:, None]
        place = xp.where(seen[:, :, None], memory, xp.full((), -np.inf, memory.dtype)).argmax(axis=1)
        found = xp.take_along_axis(memory, place[:, None], axis=1)[:, 0]
        empty = lengths[:, None] == 0
        return xp.where(empty, xp.zeros_like(found), found), (xp.where(empty, -1, place), S)

    def backward(self, dy: Array, saved: Any) -> Gradients:
        place, S = saved
        xp = array_module(dy)
        return xp.where(place[:, None] == xp.arange(S)[:, None], dy[:, None], xp.zeros_like(dy[:, None])), None


CONTEXTS: dict[str, type[Layer]] = {"last": LastState, "both": BothStates, "mean": MeanState, "max": MaxState}
