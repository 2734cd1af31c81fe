"""LogSoftmax: the logarithm of softmax, exact where the probability underflows."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_integer, gradient_of
from gpulayers.layers.softmax import rows_along, rows_back
from gpulayers.ops.softmax import log_softmax, log_softmax_backward
from gpulayers.step import Train


class LogSoftmax(Layer):
    """y_i = x_i - log(sum_j exp(x_j)), j along `axis`. Backward: dx = dy - exp(y) sum_j dy_j.

    x, y: any shape, floating. A slice of nothing but -inf stays -inf. saved: y.

    Raises TypeError for an input that is not floating, ValueError for an axis that it does not have.
    """

    def __init__(self, axis: int = -1) -> None:
        check_integer("LogSoftmax", axis=axis)
        self.axis = axis

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        y = rows_back(log_softmax(rows_along(x, self.axis, "LogSoftmax")), x.shape, self.axis)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "LogSoftmax")
        dx = log_softmax_backward(*(rows_along(a, self.axis, "LogSoftmax") for a in (dy, y)))
        return rows_back(dx, y.shape, self.axis)
