"""Softmax: positive values that sum to 1 along an axis."""

from gpulayers.backend import Array, array_module
from gpulayers.layers.layer import Layer, check_integer, floating_input, gradient_of
from gpulayers.ops.op import as_rows
from gpulayers.ops.softmax import softmax, softmax_backward
from gpulayers.step import Train


class Softmax(Layer):
    """y_i = exp(x_i) / sum_j exp(x_j), j along `axis`. Backward is the whole Jacobian: dx = y (dy - sum_j dy_j y_j).

    x, y: any shape, floating. A slice of nothing but -inf gives 0. saved: y.
    To train a classifier give the logits to `cross_entropy` instead, which is exact where a probability underflows.

    Raises TypeError for an input that is not floating, ValueError for an axis that it does not have.
    """

    def __init__(self, axis: int = -1) -> None:
        check_integer("Softmax", axis=axis)
        self.axis = axis

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        y = rows_back(softmax(rows_along(x, self.axis, "Softmax")), x.shape, self.axis)
        return y, y

    def backward(self, dy: Array, saved: Array) -> Array:
        y = saved
        gradient_of(dy, y.shape, "Softmax")
        dx = softmax_backward(*(rows_along(a, self.axis, "Softmax") for a in (dy, y)))
        return rows_back(dx, y.shape, self.axis)


def rows_along(x: Array, axis: int, who: str) -> Array:
    """(rows, size of `axis`): the slices of x along `axis`."""
    floating_input(x, who)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{who} works along axis {axis}, which an input of shape {x.shape} does not have")
    return as_rows(array_module(x).moveaxis(x, axis, -1))


def rows_back(rows: Array, shape: tuple[int, ...], axis: int) -> Array:
    """The inverse of `rows_along`: an array of `shape`."""
    axis %= len(shape)
    moved = rows.reshape(*shape[:axis], *shape[axis + 1 :], shape[axis])
    return array_module(rows).moveaxis(moved, -1, axis)
