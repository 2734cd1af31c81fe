"""Sigmoid: y = 1 / (1 + exp(-x))."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_input, gradient_of
from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward
from gpulayers.step import Train


class Sigmoid(Layer):
    """y = 1 / (1 + exp(-x)), dy/dx = y (1 - y); elementwise, any shape. Neither end overflows.

    saved: y.
    Raises TypeError for an input that is not floating, ValueError for one without axes.
    """

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "Sigmoid")
        y = sigmoid(x)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "Sigmoid")
        return sigmoid_backward(dy, y)
