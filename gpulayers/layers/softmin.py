"""Softmin: softmax of -x."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_integer, gradient_of
from gpulayers.layers.softmax import rows_along, rows_back
from gpulayers.ops.softmax import softmin, softmin_backward
from gpulayers.step import Train


class Softmin(Layer):
    """y_i = exp(-x_i) / sum_j exp(-x_j), j along `axis`. Backward: dx = -y (dy - sum_j dy_j y_j).

    x, y: any shape, floating. A slice of nothing but inf gives 0. saved: y.

    Raises TypeError for an input that is not floating, ValueError for an axis that it does not have.
    """

    def __init__(self, axis: int = -1) -> None:
        check_integer("Softmin", axis=axis)
        self.axis = axis

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        y = rows_back(softmin(rows_along(x, self.axis, "Softmin")), x.shape, self.axis)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "Softmin")
        dx = softmin_backward(*(rows_along(a, self.axis, "Softmin") for a in (dy, y)))
        return rows_back(dx, y.shape, self.axis)
