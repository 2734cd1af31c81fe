"""LeakyReLU: a small slope on the negative side."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_number, floating_input, gradient_of
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward
from gpulayers.step import Train


class LeakyReLU(Layer):
    """y = x where x > 0, else negative_slope x; elementwise, any shape. The derivative at 0 is negative_slope.

    saved: x.
    Raises TypeError for an input that is not floating, ValueError for one without axes.
    Source: Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models, 2013.
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        check_number("LeakyReLU", negative_slope=negative_slope)
        self.negative_slope = float(negative_slope)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "LeakyReLU")
        return leaky_relu(x, self.negative_slope), x

    def backward(self, dy: Array, saved: Array) -> Array:
        x = saved
        gradient_of(dy, x.shape, "LeakyReLU")
        return leaky_relu_backward(dy, x, self.negative_slope)
