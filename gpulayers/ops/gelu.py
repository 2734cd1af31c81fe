"""GELU: y = h Phi(h), where h = x + bias and Phi is the normal distribution function.

approximate="none", exact:

    dy/dh = Phi(h) + h phi(h),     phi(h) = exp(-h^2 / 2) / sqrt(2 pi)

approximate="tanh", with s the logistic function (0.5 (1 + tanh u) = s(2u)):

    y     = h s(2u),               2u  = sqrt(8 / pi) (h + 0.044715 h^3)
    dy/dh = s + h s (1 - s) 2u',   2u' = sqrt(8 / pi) (1 + 3 * 0.044715 h^2)

Source: Hendrycks and Gimpel, Gaussian error linear units, 2016, section 2.
"""

import math

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.ops.elementwise import launch_map, pieces, work_array
from gpulayers.ops.normal import EDGE, normal_cdf, normal_cpu
from gpulayers.ops.op import Op
from gpulayers.ops.sigmoid import logistic

LINEAR = math.sqrt(8 / math.pi)  # 2u = LINEAR h + CUBIC h^3
CUBIC = LINEAR * 0.044715


def _check(approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


def value_and_derivative(x: Array, bias: Array, approximate: str) -> tuple[Array, Array]:
    """The reference of all ops below: y and dy/dx, float32 or wider."""
    _check(approximate)
    xp = array_module(x, bias)
    h = x.astype(wide(x.dtype))
    if bias is not None:
        h = h + bias
    left = xp.maximum(h, -40)  # -inf, where 0 is the limit of y
    near = xp.clip(h, -40, 40)  # beyond, Phi is 0 or 1 to the last digit, and h^3 may overflow
    if approximate == "tanh":
        s = logistic(near * (LINEAR + CUBIC * near * near))
        return left * s, s + near * s * (1 - s) * (LINEAR + 3 * CUBIC * near * near)
    density = xp.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    cdf = normal_cdf(near)
    return left * cdf, cdf + near * density


# ------------------------------------------------------------------------- one piece on the CPU, in work arrays


def tanh_piece(h: np.ndarray, y: np.ndarray, derivative: np.ndarray | None, work: list[np.ndarray]) -> None:
    """y, and the derivative if there is an array for it (h itself will do). Overflow to inf is meant: y / inf = 0."""
    square, s = work[0], work[1]
    np.multiply(h, h, out=square)  # never h**3: pow is thirty times as slow as two products
    np.multiply(square, -CUBIC, out=s)
    s -= LINEAR
    s *= h
    np.exp(s, out=s)
    s += 1  # 1 / s(2u)
    np.clip(h, -40, np.inf, out=y)  # -inf / inf would be NaN
    y /= s
    if derivative is None:
        return
    np.reciprocal(s, out=s)
    np.subtract(1, s, out=derivative)
    derivative *= y  # h s (1 - s), which is 0 wherever |h| > 10, so that u' may stop growing there
    np.clip(square, 0, 100, out=square)
    square *= 3 * CUBIC
    square += LINEAR
    derivative *= square
    derivative += s


@np.errstate(invalid="ignore")  # NaN as an integer
def exact_piece(h: np.ndarray, y: np.ndarray, derivative: np.ndarray | None, work: list[np.ndarray]) -> None:
    """As tanh_piece, with five arrays of work in place of two; y is a sixth."""
    near, cdf, density, *rest = work
    np.clip(h, -EDGE, EDGE, out=near)
    normal_cpu(near, cdf, density, [*rest, y], derive=derivative is not None)
    np.clip(h, -EDGE, np.inf, out=y)  # -inf times 0 would be NaN
    y *= cdf
    if derivative is not None:
        np.multiply(near, density, out=derivative)
        derivative += cdf


def _run_cpu(x: Array, bias: Array, approximate: str, y: Array, derivative: Array) -> None:
    """Fill y, and `derivative` unless it is None; it may be x itself, and then x must be contiguous."""
    _check(approximate)
    piece = tanh_piece if approximate == "tanh" else exact_piece
    cols = 1 if bias is None else len(bias)
    work = [work_array(x, cols) for _ in range(2 if approximate == "tanh" else 5)]
    shifted: Array = None if bias is None else work_array(x, cols)
    arrays = (x, y) if derivative is None else (x, y, derivative)
    with np.errstate(over="ignore"):
        for x_part, y_part, *d_part in pieces(*arrays, cols=cols):
            rows = len(x_part)
            h = x_part
            if bias is not None:  # here it costs nothing: the piece is in cache; a pass of its own would not be
                h = np.add(x_part, bias, out=shifted[:rows])
            piece(h, y_part, d_part[0] if d_part else None, [w[:rows] for w in work])


# ------------------------------------------------------------------------------------------ the one launch of all


def _run_cuda(x: Array, bias: Array, approximate: str, y: Array, dx: Array, dy: Array = None) -> None:
    """Fill y and dx unless they are None; dx: the derivative, times dy if that is given. dx may be x itself."""
    _check(approximate)
    if bias is not None and (bias.shape != x.shape[-1:] or bias.dtype != x.dtype):
        raise ValueError(f"gelu: bias must be {x.dtype} of shape {x.shape[-1:]}, got {bias.dtype} {bias.shape}")
    cols = x.shape[-1] if x.ndim else 1
    tanh = np.int32(approximate == "tanh")
    if dy is None:
        launch_map("gelu", "gelu", (y, dx, None), (x,), bias, np.int32(cols), tanh)
    else:
        launch_map("gelu", "gelu", (y, dx), (dy, x), bias, np.int32(cols), tanh)


# --------------------------------------------------------------------------------------------------- the ops


def _gelu_reference(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    """x, y: (..., cols). bias: (cols,) or None."""
    return value_and_derivative(x, bias, approximate)[0].astype(x.dtype)


def _gelu_cpu(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    y = empty(x.shape, x.dtype, like=x)
    _run_cpu(x, bias, approximate, y, None)
    return y


def _gelu_cuda(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    y = empty(x.shape, x.dtype, like=x)
    _run_cuda(x, bias, approximate, y, None)
    return y


gelu = Op("gelu", reference=_gelu_reference, cpu=_gelu_cpu, cuda=_gelu_cuda)


def _backward_reference(dy: Array, x: Array, bias: Array = None, approximate: str = "none") -> Array:
    """x, bias: as given to forward. Returns dx; dbias is the sum of its rows."""
    return (dy.astype(wide(x.dtype)) * value_and_derivative(x, bias, approximate)[1]).astype(x.dtype)


def _backward_cpu(dy: Array, x: Array, bias: Array = None, approximate: str = "none") -> Array:
    dx = _with_derivative_cpu(x, bias, approximate)[1]
    dx *= dy
    return dx


def _backward_cuda(dy: Array, x: Array, bias: Array = None, approximate: str = "none") -> Array:
    dx = empty(x.shape, x.dtype, like=x)
    _run_cuda(x, bias, approximate, None, dx, dy)
    return dx


gelu_backward = Op("gelu_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)


def _with_derivative_reference(x: Array, bias: Array = None, approximate: str = "none") -> tuple[Array, Array]:
    """Returns y and dy/dx, both like x: both need the same exponential, and backward is then one product."""
    y, derivative = value_and_derivative(x, bias, approximate)
    return y.astype(x.dtype), derivative.astype(x.dtype)


def _with_derivative_cpu(x: Array, bias: Array = None, approximate: str = "none") -> tuple[Array, Array]:
    y, derivative = empty(x.shape, x.dtype, like=x), empty(x.shape, x.dtype, like=x)
    _run_cpu(x, bias, approximate, y, derivative)
    return y, derivative


def _with_derivative_cuda(x: Array, bias: Array = None, approximate: str = "none") -> tuple[Array, Array]:
    y, derivative = empty(x.shape, x.dtype, like=x), empty(x.shape, x.dtype, like=x)
    _run_cuda(x, bias, approximate, y, derivative)
    return y, derivative


gelu_with_derivative = Op(
    "gelu_with_derivative",
    reference=_with_derivative_reference,
    cpu=_with_derivative_cpu,
    cuda=_with_derivative_cuda,
)


def _inplace_reference(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    """Returns y and overwrites x by dy/dx: for a caller that made x and needs it no more."""
    y, derivative = value_and_derivative(x, bias, approximate)
    x[...] = derivative
    return y.astype(x.dtype)


def _check_contiguous(x: Array) -> None:
    if not x.flags.c_contiguous:
        raise ValueError(f"gelu_with_derivative_inplace: x must be contiguous, got strides {x.strides}")


def _inplace_cpu(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    _check_contiguous(x)
    y = empty(x.shape, x.dtype, like=x)
    _run_cpu(x, bias, approximate, y, x)
    return y


def _inplace_cuda(x: Array, bias: Array = None, approximate: str = "none") -> Array:
    _check_contiguous(x)
    y = empty(x.shape, x.dtype, like=x)
    _run_cuda(x, bias, approximate, y, x)
    return y


gelu_with_derivative_inplace = Op(
    "gelu_with_derivative_inplace", reference=_inplace_reference, cpu=_inplace_cpu, cuda=_inplace_cuda
)
