"""PReLU: LeakyReLU with trained slopes."""

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import (
    Layer,
    check_dtype,
    check_number,
    check_sizes,
    floating_input,
    floating_like,
    gradient_of,
    last_axis,
)
from gpulayers.ops.op import as_rows
from gpulayers.ops.relu import prelu, prelu_backward
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class PReLU(Layer):
    """y = x where x > 0, else weight x. The derivative at 0 is the slope.

    num_parameters: 1 for one slope, or the size of the last axis for a slope of each channel (the channels are the
    last axis, as everywhere in this library; PyTorch's are axis 1).
    x, y: (..., channels). weight: (num_parameters,), starting at `init`.
    saved: x.
    Raises ValueError for another last axis than num_parameters > 1, TypeError for another dtype than the weight's.
    Source: He, Zhang, Ren and Sun, Delving deep into rectifiers, 2015, equation 1.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: str = "float32") -> None:
        check_sizes("PReLU", num_parameters=num_parameters)
        check_number("PReLU", init=init)
        check_dtype("PReLU", dtype)
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init, dtype))

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        floating_input(x, "PReLU")
        floating_like(x, self.weight, "PReLU")
        if self.num_parameters > 1:
            last_axis(x, self.num_parameters, "PReLU")
        y = prelu(as_rows(x), self.weight.data)
        return y.reshape(x.shape), x

    def backward(self, dy: Array, saved: Array) -> Array:
        x = saved
        gradient_of(dy, x.shape, "PReLU")
        dx, dweight = prelu_backward(as_rows(dy), as_rows(x), self.weight.data)
        self.weight.add_grad(dweight)
        return dx.reshape(x.shape)
