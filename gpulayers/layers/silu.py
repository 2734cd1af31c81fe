"""SiLU: y = x / (1 + exp(-x)), also called Swish."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_input, gradient_of
from gpulayers.ops.elementwise import multiply
from gpulayers.ops.sigmoid import silu, silu_with_derivative
from gpulayers.step import Train


class SiLU(Layer):
    """y = x s(x) with s(x) = 1 / (1 + exp(-x)), elementwise, any shape.

    saved: dy/dx, not x: y and dy/dx come from one exponential, and backward is one product.
    Raises TypeError for an input that is not floating, ValueError for one without axes.
    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2.
    """

    def __call__(self, x: Array) -> Array:
        floating_input(x, "SiLU")
        return silu(x)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "SiLU")
        return silu_with_derivative(x)

    def backward(self, dy: Array, saved: Array) -> Array:
        derivative = saved
        gradient_of(dy, derivative.shape, "SiLU")
        return multiply(dy, derivative)
