"""ReLU: y = max(x, 0)."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_input, gradient_of
from gpulayers.ops.relu import relu, relu_backward
from gpulayers.step import Train


class ReLU(Layer):
    """y = max(x, 0), elementwise, any shape. The derivative at 0 is taken as 0. NaN stays NaN.

    saved: y, which the next layer usually keeps anyway.
    Raises TypeError for an input that is not floating, ValueError for one without axes.
    """

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "ReLU")
        y = relu(x)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "ReLU")
        return relu_backward(dy, y)
