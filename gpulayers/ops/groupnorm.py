"""Group normalisation: the channels of a group of one sample, over all positions. Groups of one channel each make
instance normalisation.

    mean = sum(x) / m        var = sum((x - mean)^2) / m        rstd = 1 / sqrt(var + eps)
    xhat = (x - mean) rstd   y = xhat weight[c] + bias[c]       sums over the m = C / G L values of a group

Backward, with g = dy weight[c]:

    dx         = rstd (g - mean(g) - xhat mean(g xhat))         means over the group
    dweight[c] = sum over samples and positions of dy xhat      dbias[c] = sum over samples and positions of dy

Sources: Wu and He, Group normalization, 2018, section 3; Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, launch, row_threads
from gpulayers.ops.elementwise import work_array
from gpulayers.ops.layernorm import NORM_THREADS, centre_rows
from gpulayers.ops.op import Op, as_rows, check_like, check_shape, row_blocks
from gpulayers.ops.sum_rows import sum_partials


def _forward_reference(x: Array, weight: Array, bias: Array, groups: int, eps: float) -> tuple[Array, Array, Array]:
    """x: (N, C, L), groups divides C. weight, bias: (C,), or None for 1 and 0.

    Returns y like x; mean and (biased) variance of each group, (N, groups), float32 or wider.
    """
    xp, N = array_module(x, weight, bias), len(x)
    if x.size == 0:
        return _of_nothing(x, groups)
    wide_x = x.astype(wide(x.dtype)).reshape(N, groups, -1)
    mean = wide_x.mean(axis=2, keepdims=True)
    centred = wide_x - mean  # two passes: E[x^2] - E[x]^2 cancels to nothing when the mean is large
    var = (centred * centred).mean(axis=2, keepdims=True)
    y = (centred / xp.sqrt(var + eps)).reshape(x.shape)
    if weight is not None:
        y = y * weight[:, None]
    if bias is not None:
        y = y + bias[:, None]
    return y.astype(x.dtype), mean[:, :, 0], var[:, :, 0]


def _of_nothing(x: Array, groups: int) -> tuple[Array, Array, Array]:
    y, shape = empty(x.shape, x.dtype, like=x), (len(x), groups)
    return y, zeros(shape, wide(x.dtype), like=x), zeros(shape, wide(x.dtype), like=x)


def _forward_cpu(x: Array, weight: Array, bias: Array, groups: int, eps: float) -> tuple[Array, Array, Array]:
    if x.size == 0:
        return _of_nothing(x, groups)
    N, C, L = x.shape
    y, mean, var = empty(x.shape, x.dtype, like=x), *np.empty((2, N, groups), x.dtype)
    rows = (N * groups, C // groups, L)  # a few groups at a time, which stay in cache
    x_rows, y_rows, m, v = np.ascontiguousarray(x).reshape(rows), y.reshape(rows), mean.reshape(-1), var.reshape(-1)
    average = np.full(C // groups * L, groups / (C * L), x.dtype)
    for block in row_blocks(len(m), len(average)):
        part, some = x_rows[block], y_rows[block]
        centre_rows(part.reshape(len(part), -1), some.reshape(len(part), -1), average, m[block], v[block])
        factor = 1 / np.sqrt(v[block] + x.dtype.type(eps))[:, None]
        some *= (factor if weight is None else factor * _of_groups(weight, groups, block))[..., None]
        if bias is not None:
            some += _of_groups(bias, groups, block)[..., None]
    return y, mean, var


def _of_groups(vector: np.ndarray, groups: int, block: slice) -> np.ndarray:
    """Gains or biases (C,) of the channels of some groups, counted through all samples: (some, C / groups)."""
    return vector.reshape(groups, -1)[np.arange(block.start, block.stop) % groups]


GROUP_THREADS = 1024  # of a block at most, as kernels/groupnorm.cu has it


def _forward_cuda(x: Array, weight: Array, bias: Array, groups: int, eps: float) -> tuple[Array, Array, Array]:
    check_shape("groupnorm", x.shape[1:2], weight=weight, bias=bias)
    if x.size == 0:
        return _of_nothing(x, groups)
    x, (grid, block), sizes = contiguous(x), _tiles(x, groups), _sizes(x, groups)
    y = empty(x.shape, x.dtype, like=x)
    mean, var = (empty((len(x), groups), np.float32, like=x) for _ in range(2))
    launch(
        "groupnorm", "groupnorm", grid, block, (y, mean, var, x, weight, bias, np.float32(eps), *sizes), storage=x.dtype
    )
    return y, mean, var


def _tiles(x: Array, groups: int) -> tuple[tuple[int], tuple[int, int]]:
    """(grid, block) of kernels/groupnorm.cu. Groups are few and long, so one may have more threads than a row of
    LayerNorm: 8 images in 32 groups are 256 rows, two for each multiprocessor of the largest cards."""
    threads = row_threads(x.reshape(len(x) * groups, -1), most=GROUP_THREADS, packs=4)
    height = max(1, NORM_THREADS // threads)
    return (-(-len(x) * groups // height),), (threads, height)


def _sizes(x: Array, groups: int) -> tuple[np.generic, ...]:
    """rows, groups, channels of a group, positions."""
    N, C, L = x.shape
    if (size := C // groups * L) >= 1 << 31:
        raise ValueError(f"groupnorm takes groups of less than 2^31 values, got {size} (input {x.shape})")
    return np.int64(N * groups), np.int32(groups), np.int32(C // groups), np.int32(L)


WORK["groupnorm"] = lambda y, *rest: Work(bytes_of(y, *rest), 8 * y.size)
groupnorm = Op("groupnorm", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _backward_reference(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float
) -> tuple[Array, Array, Array]:
    """dy, x: (N, C, L). mean, var: (N, groups) from forward. Returns dx like x, dweight (C,), dbias (C,), float32 or
    wider."""
    xp, dtype, shape = array_module(dy, x, mean, var, weight), wide(x.dtype), x.shape
    if x.size == 0:
        return empty(shape, x.dtype, like=x), *zeros((2, shape[1]), dtype, like=x)
    grouped = (*mean.shape, -1)
    rstd = 1 / xp.sqrt(var[..., None] + eps)
    xhat = (x.astype(dtype).reshape(grouped) - mean[..., None]) * rstd
    dy_wide = dy.astype(dtype)
    dweight, dbias = (dy_wide * xhat.reshape(shape)).sum(axis=(0, 2)), dy_wide.sum(axis=(0, 2))
    g = (dy_wide if weight is None else dy_wide * weight[:, None]).reshape(grouped)
    mean_g, mean_gx = (a.mean(axis=2, keepdims=True) for a in (g, g * xhat))
    dx = rstd * (g - mean_g - xhat * mean_gx)
    return dx.reshape(shape).astype(x.dtype), dweight, dbias


def _backward_cpu(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float
) -> tuple[Array, Array, Array]:
    (N, C, L), G = x.shape, mean.shape[1]
    if x.size == 0:
        return empty(x.shape, x.dtype, like=x), np.zeros(C, x.dtype), np.zeros(C, x.dtype)
    dx, sums = empty(x.shape, x.dtype, like=x), np.empty((2, N * G, C // G), x.dtype)
    rows, size, ones = (N * G, C // G, L), C // G * L, np.ones(L, x.dtype)
    dy_rows, x_rows, dx_rows = (np.ascontiguousarray(a).reshape(rows) for a in (dy, x, dx))
    m, rstd = mean.reshape(-1), 1 / np.sqrt(var.reshape(-1) + x.dtype.type(eps))
    work = work_array(x.reshape(N * G, size), size).reshape(-1, *rows[1:])
    for block in row_blocks(N * G, size):
        d, centred, r = dy_rows[block], dx_rows[block], rstd[block, None]
        n = len(d)
        np.subtract(x_rows[block], m[block, None, None], out=centred)
        product = np.multiply(d, centred, out=work[:n])
        # What is summed over the positions first is small: the rest of the work is on a number for each channel.
        dy_xhat = (as_rows(product) @ ones).reshape(n, -1) * r
        dy_sum = (as_rows(d) @ ones).reshape(n, -1)
        sums[0, block], sums[1, block] = dy_xhat, dy_sum
        if weight is not None:
            gain = _of_groups(weight, G, block)
            d = np.multiply(d, gain[..., None], out=product)
            dy_xhat, dy_sum = dy_xhat * gain, dy_sum * gain
        centred *= (dy_xhat.sum(axis=1, keepdims=True) / size * r)[..., None]
        centred += (dy_sum.sum(axis=1, keepdims=True) / size)[..., None]
        np.subtract(d, centred, out=centred)
        centred *= r[..., None]
    dweight, dbias = sums.reshape(2, N, C).sum(axis=1)
    return dx, dweight, dbias


def _backward_cuda(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float
) -> tuple[Array, Array, Array]:
    check_like("groupnorm_backward", x, dy=dy)
    check_shape("groupnorm_backward", x.shape[1:2], weight=weight)
    check_shape("groupnorm_backward", (len(x), mean.shape[1]), mean=mean, var=var)
    dx = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return dx, *zeros((2, x.shape[1]), np.float32, like=x)
    dy, x, groups = contiguous(dy), contiguous(x), mean.shape[1]
    (grid, block), sizes = _tiles(x, groups), _sizes(x, groups)
    partial = empty((len(x), 2, x.shape[1]), np.float32, like=x)
    args = (dx, partial, dy, x, mean, var, weight, np.float32(eps), *sizes, np.int32(_sharing(x, groups, block[0])))
    launch("groupnorm", "groupnorm_backward", grid, block, args, storage=x.dtype)
    sums = sum_partials(partial)
    return dx, sums[0], sums[1]


def _sharing(x: Array, groups: int, threads: int) -> int:
    """Threads to a channel, a power of two up to a warp, such that each reads about four times 16 bytes; or all the
    threads of a row, where there are fewer channels than warps."""
    if x.shape[1] // groups * 32 < threads:
        return threads
    packs = -(-x.shape[2] * x.dtype.itemsize // 16)
    return min(32, 1 << (-(-packs // 4) - 1).bit_length())


WORK["groupnorm_backward"] = lambda dx, *rest: Work(bytes_of(dx, *rest), 14 * dx.size)
groupnorm_backward = Op("groupnorm_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
