"""Dropout: zeros at random while training, nothing in evaluation."""

import math

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_number, floating_input
from gpulayers.ops.dropout import dropout
from gpulayers.step import Key, Train


class Dropout(Layer):
    """y = 0 with probability p, else x / (1 - p), for each element on its own; y = x when train is None or p = 0.

    x, y: (samples, ...). The first axis counts the samples: a sample's bits depend on the seed, the step, the place of
    this call in the pass and the sample's index in the whole batch, not on how the batch is split.
    The identity returns the very array that it was given. p = 1 gives zeros, even for inf and NaN.
    saved: the key of the random bits, from which backward draws them again; None for the identity.
    Raises ValueError for p outside 0..1, TypeError for an input that is not floating.
    Source: Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting, 2014.
    """

    def __init__(self, p: float = 0.5) -> None:
        check_number("Dropout", 0, 1, p=p)
        self.p = float(p)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Key | None]:
        floating_input(x, "Dropout")
        if train is None or self.p == 0:
            return x, None
        key = train.draw()
        return self._drop(x, key), key

    def backward(self, dy: Array, saved: Key | None) -> Array:
        key = saved
        floating_input(dy, "Dropout.backward")
        return dy if key is None else self._drop(dy, key)

    def _drop(self, x: Array, key: Key) -> Array:
        return dropout(x.reshape(x.shape[0], math.prod(x.shape[1:])), key, self.p).reshape(x.shape)
