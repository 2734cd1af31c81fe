"""Linear: y = x W + b."""

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.layer import Layer, check_dtype, check_flags, check_sizes, floating_like, gradient_of, last_axis
from gpulayers.ops.matmul import matmul
from gpulayers.ops.op import as_rows
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Linear(Layer):
    """y = x weight + bias, for any number of leading dimensions.

    x: (..., in_features). y: (..., out_features).
    weight: (in_features, out_features), as in GPT-2. bias: (out_features,).
    Initial values: uniform in +-1/sqrt(in_features) for both, as PyTorch; `init(shape, rng)` replaces the weight's.
    saved: x.

    Raises ValueError for a wrong last dimension, TypeError for another dtype than the parameters'.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        check_flags("Linear", bias=bias)
        check_dtype("Linear", dtype)
        rng = initialize.generator(rng)
        self.in_features, self.out_features = in_features, out_features
        init = init or initialize.fan_in_uniform
        self.weight = Parameter(init((in_features, out_features), rng).astype(dtype))
        self.bias = None
        if bias:
            self.bias = Parameter(initialize.fan_in_uniform((out_features,), rng, fan_in=in_features).astype(dtype))

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_like(x, self.weight, "Linear")
        last_axis(x, self.in_features, "Linear")
        y = matmul(as_rows(x), self.weight.data, bias=None if self.bias is None else self.bias.data)
        return y.reshape(*x.shape[:-1], self.out_features), x

    def backward(self, dy: Array, saved: Array, out: Array = None) -> Array:
        """out: (rows, in_features), where dx is written; it may be the memory of x, if nobody needs that any more."""
        x = saved
        gradient_of(dy, (*x.shape[:-1], self.out_features), "Linear")
        dy_rows = as_rows(dy)
        matmul(as_rows(x).T, dy_rows, add_to=self.weight)  # dW += x' dy, first: it refuses a dy of another dtype
        if self.bias is not None:
            self.bias.add_grad(sum_rows(dy_rows))
        return matmul(dy_rows, self.weight.data.T, out=out).reshape(x.shape)  # dx = dy W'
