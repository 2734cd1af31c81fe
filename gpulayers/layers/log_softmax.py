"""LogSoftmax: the logarithm of softmax, exact where the probability underflows."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_integer
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
        y = log_softmax(rows_along(x, self.axis, "LogSoftmax"))
        return rows_back(y, x.shape, self.axis), y

    def backward(self, dy: Array, saved: Array) -> Array:
        dx = log_softmax_backward(rows_along(dy, self.axis, "LogSoftmax"), saved)
        return rows_back(dx, dy.shape, self.axis)
