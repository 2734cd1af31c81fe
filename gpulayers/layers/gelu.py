"""GELU: y = x Phi(x), exact or by the tanh formula."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_input, gradient_of
from gpulayers.ops.elementwise import multiply
from gpulayers.ops.gelu import gelu, gelu_with_derivative
from gpulayers.step import Train


class GELU(Layer):
    """y = x Phi(x), elementwise, any shape; Phi is the normal distribution function.

    approximate: "none", exact; or "tanh", y = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as in GPT-2.
    saved: dy/dx, not x: y and dy/dx come from one exponential, and backward is one product.
    Raises ValueError for another `approximate`, TypeError for an input that is not floating.
    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2.
    """

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def __call__(self, x: Array) -> Array:
        floating_input(x, "GELU")
        return gelu(x, None, self.approximate)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "GELU")
        return gelu_with_derivative(x, None, self.approximate)

    def backward(self, dy: Array, saved: Array) -> Array:
        derivative = saved
        gradient_of(dy, derivative.shape, "GELU")
        return multiply(dy, derivative)
