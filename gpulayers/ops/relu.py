"""ReLU and its leaky relatives.

    relu:        y = max(x, 0)                       dx = dy where y > 0, else 0
    leaky_relu:  y = x where x > 0, else slope x     dx = dy where x > 0, else slope dy
    prelu:       the same with a trained slope       dslope = sum of dy x where x <= 0

Sources: Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models, 2013 (leaky);
He, Zhang, Ren and Sun, Delving deep into rectifiers, 2015, equations 1 and 8 to 10 (PReLU).
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import keep_where, launch_map, pieces, work_array
from gpulayers.ops.op import Op
from gpulayers.ops.sum_rows import TILE_THREADS, column_tiles, sum_partials

# ------------------------------------------------------------------------------------------------------- relu


def _relu_reference(x: Array) -> Array:
    """x, y: any shape."""
    return array_module(x).maximum(x, 0)


def _relu_cpu(x: Array) -> Array:
    # clip is three times as fast as maximum with a scalar (NumPy 2.4, AVX2), and passes NaN on just so
    return np.clip(x, 0, np.inf, out=empty(x.shape, x.dtype, like=x))


def _relu_cuda(x: Array) -> Array:
    return launch_map("relu", "relu", 1, (x,))[0]


relu = Op("relu", reference=_relu_reference, cpu=_relu_cpu, cuda=_relu_cuda)


def _relu_backward_reference(dy: Array, y: Array) -> Array:
    """y: relu's output, which the next layer keeps anyway. Returns dx."""
    xp = array_module(dy, y)
    return xp.where(y > 0, dy, xp.zeros_like(dy))


def _relu_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    for dy_part, y_part, dx_part in pieces(dy, y, dx):
        keep_where(y_part > 0, dy_part, dx_part)
    return dx


def _relu_backward_cuda(dy: Array, y: Array) -> Array:
    return launch_map("relu", "relu_backward", 1, (dy, y))[0]


relu_backward = Op(
    "relu_backward", reference=_relu_backward_reference, cpu=_relu_backward_cpu, cuda=_relu_backward_cuda
)

# ------------------------------------------------------------------------------------------------- leaky_relu


def _times(x: Array, slope: Array | float) -> Array:
    """x slope, rounded once: neither the slope nor a wider result is rounded to a half type on the way."""
    return (x.astype(wide(x.dtype)) * slope).astype(x.dtype)


def _leaky_relu_reference(x: Array, slope: float) -> Array:
    """x, y: any shape. slope: factor of the negative side."""
    return array_module(x).where(x > 0, x, _times(x, slope))


def _leaky_relu_cpu(x: Array, slope: float) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    pick = np.maximum if slope <= 1 else np.minimum  # of x and slope x, the larger one is right up to slope 1
    for x_part, y_part in pieces(x, y):
        np.multiply(x_part, slope, out=y_part)
        pick(x_part, y_part, out=y_part)
    return y


def _leaky_relu_cuda(x: Array, slope: float) -> Array:
    return launch_map("relu", "leaky_relu", 1, (x,), np.float32(slope))[0]


leaky_relu = Op("leaky_relu", reference=_leaky_relu_reference, cpu=_leaky_relu_cpu, cuda=_leaky_relu_cuda)


def _leaky_relu_backward_reference(dy: Array, x: Array, slope: float) -> Array:
    """Returns dx."""
    return array_module(dy, x).where(x > 0, dy, _times(dy, slope))


def _leaky_relu_backward_cpu(dy: Array, x: Array, slope: float) -> Array:
    dx = empty(x.shape, x.dtype, like=x)
    for dy_part, x_part, dx_part in pieces(dy, x, dx):
        np.multiply(x_part > 0, x.dtype.type(1 - slope), out=dx_part)  # the derivative: 1 or slope
        dx_part += slope
        dx_part *= dy_part
    return dx


def _leaky_relu_backward_cuda(dy: Array, x: Array, slope: float) -> Array:
    return launch_map("relu", "leaky_relu_backward", 1, (dy, x), np.float32(slope))[0]


leaky_relu_backward = Op(
    "leaky_relu_backward",
    reference=_leaky_relu_backward_reference,
    cpu=_leaky_relu_backward_cpu,
    cuda=_leaky_relu_backward_cuda,
)

# ------------------------------------------------------------------------------------------------------ prelu


def _prelu_reference(x: Array, weight: Array) -> Array:
    """x: (rows, cols). weight: (1,), or (cols,) for a slope of each channel. Returns y like x."""
    return array_module(x, weight).where(x > 0, x, _times(x, weight))


def _prelu_cpu(x: Array, weight: Array) -> Array:
    cols = x.shape[1]
    y, negative = empty(x.shape, x.dtype, like=x), work_array(x, cols)
    for x_part, y_part in pieces(x, y, cols=cols):
        n = negative[: len(x_part)]
        np.clip(x_part, -np.inf, 0, out=n)  # y = max(x, 0) + weight min(x, 0), whatever the weight's sign
        n *= weight
        np.clip(x_part, 0, np.inf, out=y_part)
        y_part += n
    return y


def _prelu_cuda(x: Array, weight: Array) -> Array:
    return launch_map("relu", "prelu", 1, (x,), contiguous(weight), np.int32(weight.size))[0]


prelu = Op("prelu", reference=_prelu_reference, cpu=_prelu_cpu, cuda=_prelu_cuda)


def _prelu_backward_reference(dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """dy, x: (rows, cols). Returns dx like x, and dweight like weight, float32 or wider."""
    xp = array_module(dy, x, weight)
    dx = xp.where(x > 0, dy, _times(dy, weight))
    negative = xp.where(x > 0, xp.zeros_like(x), x).astype(wide(x.dtype))
    dweight = (dy * negative).sum(axis=0)
    return dx, dweight if weight.size == dweight.size else dweight.sum(keepdims=True)


def _prelu_backward_cpu(dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    cols = x.shape[1]
    dx, negative = empty(x.shape, x.dtype, like=x), work_array(x, cols)
    dweight, ones = np.zeros(cols, x.dtype), np.ones(len(negative), x.dtype)
    for dy_part, x_part, dx_part in pieces(dy, x, dx, cols=cols):
        n = negative[: len(x_part)]
        np.clip(x_part, -np.inf, 0, out=n)
        n *= dy_part
        dweight += np.matmul(ones[: len(n)], n)
        np.multiply(x_part > 0, 1 - weight, out=dx_part)  # the derivative: 1 or weight
        dx_part += weight
        dx_part *= dy_part
    return dx, dweight if weight.size == cols else dweight.sum(keepdims=True)


def _prelu_backward_cuda(dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return dx, zeros(weight.shape, np.float32, like=x)
    (rows, cols), (dy, x, weight) = x.shape, map(contiguous, (dy, x, weight))
    grid, partial = column_tiles(x)
    args = (dx, partial, dy, x, weight, np.int32(weight.size), np.int64(rows), np.int32(cols))
    launch("relu", "prelu_backward", grid, (TILE_THREADS,), args, storage=x.dtype)
    dweight = sum_partials(partial)
    return dx, dweight if weight.size == cols else sum_partials(dweight[:, None])


prelu_backward = Op(
    "prelu_backward", reference=_prelu_backward_reference, cpu=_prelu_backward_cpu, cuda=_prelu_backward_cuda
)
