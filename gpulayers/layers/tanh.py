"""Tanh: y = tanh(x)."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_input, gradient_of
from gpulayers.ops.sigmoid import tanh, tanh_backward
from gpulayers.step import Train


class Tanh(Layer):
    """y = tanh(x), dy/dx = 1 - y^2; elementwise, any shape.

    saved: y.
    Raises TypeError for an input that is not floating, ValueError for one without axes.
    """

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "Tanh")
        y = tanh(x)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "Tanh")
        return tanh_backward(dy, y)
