"""Sigmoid, SiLU and tanh.

    sigmoid:  y = s(x) = 1 / (1 + exp(-x))     dx = dy y (1 - y)
    tanh:     y = tanh(x)                      dx = dy (1 - y^2)
    silu:     y = x s(x)                       dx = dy s(x) (1 + x (1 - s(x)))

The small values of the left tail keep their digits, which 0.5 + 0.5 tanh(x / 2) would lose. exp(-x) overflows to inf
for large negative x, where 1 / inf is the 0 that float32 has there.

Sources: Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2; Ramachandran, Zoph and Le, Searching for
activation functions, 2017 (SiLU, there called Swish).
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.ops.elementwise import launch_map, pieces, work_array
from gpulayers.ops.op import Op


def logistic(x: Array) -> Array:
    """s(x) with all its digits, on any device, without overflow."""
    xp = array_module(x)
    e = xp.exp(-xp.abs(x))  # in (0, 1]
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _sigmoid_reference(x: Array) -> Array:
    """x, y: any shape."""
    return logistic(x.astype(wide(x.dtype))).astype(x.dtype)


@np.errstate(over="ignore")
def _sigmoid_cpu(x: Array) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    for x_part, y_part in pieces(x, y):
        one_plus_exp(x_part, y_part)
        np.reciprocal(y_part, out=y_part)
    return y


def one_plus_exp(x: np.ndarray, out: np.ndarray) -> None:
    """out = 1 / s(x) = 1 + exp(-x). The overflow is meant: keeping x in range would be a pass more."""
    np.multiply(x, -1, out=out)
    np.exp(out, out=out)
    out += 1


def _sigmoid_cuda(x: Array) -> Array:
    return launch_map("sigmoid", "sigmoid", 1, (x,))[0]


sigmoid = Op("sigmoid", reference=_sigmoid_reference, cpu=_sigmoid_cpu, cuda=_sigmoid_cuda)


def _sigmoid_backward_reference(dy: Array, y: Array) -> Array:
    """y: sigmoid's output. Returns dx."""
    dtype = wide(y.dtype)
    y_wide = y.astype(dtype)
    return (dy.astype(dtype) * y_wide * (1 - y_wide)).astype(y.dtype)


def _sigmoid_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    for dy_part, y_part, dx_part in pieces(dy, y, dx):
        np.subtract(1, y_part, out=dx_part)
        dx_part *= y_part
        dx_part *= dy_part
    return dx


def _sigmoid_backward_cuda(dy: Array, y: Array) -> Array:
    return launch_map("sigmoid", "sigmoid_backward", 1, (dy, y))[0]


sigmoid_backward = Op(
    "sigmoid_backward", reference=_sigmoid_backward_reference, cpu=_sigmoid_backward_cpu, cuda=_sigmoid_backward_cuda
)


def _tanh_reference(x: Array) -> Array:
    """x, y: any shape."""
    return array_module(x).tanh(x.astype(wide(x.dtype))).astype(x.dtype)


def _tanh_cpu(x: Array) -> Array:
    return np.tanh(x, out=empty(x.shape, x.dtype, like=x))


def _tanh_cuda(x: Array) -> Array:
    return launch_map("sigmoid", "tanh_forward", 1, (x,))[0]


tanh = Op("tanh", reference=_tanh_reference, cpu=_tanh_cpu, cuda=_tanh_cuda)


def _tanh_backward_reference(dy: Array, y: Array) -> Array:
    """y: tanh's output. Returns dx."""
    dtype = wide(y.dtype)
    y_wide = y.astype(dtype)
    return (dy.astype(dtype) * (1 - y_wide * y_wide)).astype(y.dtype)


def _tanh_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    for dy_part, y_part, dx_part in pieces(dy, y, dx):
        np.multiply(y_part, y_part, out=dx_part)
        np.subtract(1, dx_part, out=dx_part)
        dx_part *= dy_part
    return dx


def _tanh_backward_cuda(dy: Array, y: Array) -> Array:
    return launch_map("sigmoid", "tanh_backward", 1, (dy, y))[0]


tanh_backward = Op(
    "tanh_backward", reference=_tanh_backward_reference, cpu=_tanh_backward_cpu, cuda=_tanh_backward_cuda
)


def _silu_reference(x: Array) -> Array:
    """x, y: any shape."""
    x_wide = x.astype(wide(x.dtype))
    return (x_wide * logistic(x_wide)).astype(x.dtype)


@np.errstate(over="ignore")
def _silu_cpu(x: Array) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    for x_part, y_part in pieces(x, y):
        silu_piece(x_part, y_part, None, y_part)
    return y


def silu_piece(x: np.ndarray, y: np.ndarray, derivative: np.ndarray | None, work: np.ndarray) -> None:
    """y, and the derivative if there is an array for it; then y is none to work in."""
    s = work if derivative is None else derivative
    one_plus_exp(x, s)
    np.divide(x, s, out=y)
    if derivative is None:
        return
    np.reciprocal(s, out=s)
    np.subtract(1, s, out=work)
    work *= y
    s += work  # s (1 + x (1 - s)) = s + y (1 - s)


def _silu_cuda(x: Array) -> Array:
    return launch_map("sigmoid", "silu", 1, (x,))[0]


silu = Op("silu", reference=_silu_reference, cpu=_silu_cpu, cuda=_silu_cuda)


def _silu_with_derivative_reference(x: Array) -> tuple[Array, Array]:
    """Returns y and dy/dx like x: for the price of one exponential, backward is a product."""
    x_wide = x.astype(wide(x.dtype))
    s = logistic(x_wide)
    return (x_wide * s).astype(x.dtype), (s * (1 + x_wide * (1 - s))).astype(x.dtype)


@np.errstate(over="ignore")
def _silu_with_derivative_cpu(x: Array) -> tuple[Array, Array]:
    y, derivative = empty(x.shape, x.dtype, like=x), empty(x.shape, x.dtype, like=x)
    work = work_array(x)
    for x_part, y_part, d_part in pieces(x, y, derivative):
        silu_piece(x_part, y_part, d_part, work[: len(d_part)])
    return y, derivative


def _silu_with_derivative_cuda(x: Array) -> tuple[Array, Array]:
    y, derivative = launch_map("sigmoid", "silu_with_derivative", 2, (x,))
    return y, derivative


silu_with_derivative = Op(
    "silu_with_derivative",
    reference=_silu_with_derivative_reference,
    cpu=_silu_with_derivative_cpu,
    cuda=_silu_with_derivative_cuda,
)
