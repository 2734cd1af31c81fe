"""TiedLinear: a linear layer whose weight is the table of an embedding, y = x W'."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_like, gradient_of, last_axis
from gpulayers.ops.matmul import Product, matmul
from gpulayers.ops.op import as_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class TiedLinear(Layer):
    """y = x table', where `table` is the very Parameter of an `Embedding`: one array, one gradient, one pair of
    moments.

    x: (..., D). y: (..., V). table: (V, D).
    saved: x.
    Source: Press and Wolf, Using the output embedding to improve language models, 2017.
    """

    def __init__(self, table: Parameter) -> None:
        if not isinstance(table, Parameter) or table.data.ndim != 2:
            got = table.shape if isinstance(table, Parameter) else type(table).__name__
            raise TypeError(f"TiedLinear takes the Parameter of a table (V, D), got {got}")
        self.weight = table

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_like(x, self.weight, "TiedLinear")
        last_axis(x, self.weight.shape[1], "TiedLinear")
        y = matmul(as_rows(x), self.weight.data.T)
        return y.reshape(*x.shape[:-1], self.weight.shape[0]), x

    def backward(self, dy: Array, saved: Array) -> Array:
        x = saved
        gradient_of(dy, (*x.shape[:-1], len(self.weight.data)), "TiedLinear")
        dy_rows = as_rows(dy)
        dx = matmul(dy_rows, self.weight.data).reshape(x.shape)  # dx = dy W, first: it refuses a dy of another dtype
        self.weight.contribute_deferred(Product(dy_rows.T, as_rows(x)))  # dW += dy' x
        return dx
