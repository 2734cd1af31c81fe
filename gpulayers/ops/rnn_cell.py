"""One step of a plain recurrent network, and what all recurrent cells share.

    h' = f(gi + gh),  f = tanh or relu

gi: the part of the sum that comes from the input, x W_ih + bias; gh: the part that comes from the state, h W_hh. Both
are made by `matmul`, gi for all steps at once.

Backward: the gradient of h' is the sum of up to three arrays, each of which may be None: dy, of this step's output;
direct, which came past the next step (its z dh, say); product, which came through the next step's W_hh.

    da = (dy + direct + product) f'        f' = 1 - h'^2 for tanh, h' > 0 for relu

lengths (B,), int32: a row with t >= its length is idle. It keeps its state, gives gi and gh no gradient, ignores dy and
passes the rest of the gradient on.

Source: Elman, Finding structure in time, 1990.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, device_of, empty, is_array, to_device, wide
from gpulayers.cuda import contiguous, error_flag, launch
from gpulayers.ops.elementwise import keep_where
from gpulayers.ops.op import Op, check_shape

NONLINEARITIES = ("tanh", "relu")
Out = tuple[Array, ...] | None


def into(out: Out, *values: Array) -> Any:
    """`values`, copied into the arrays of `out` if there are any; a tuple if there are several."""
    results: Any = values if out is None else out
    for array, value in zip(results, values, strict=True):
        if array is not value:
            array[...] = value
    return results if len(results) > 1 else results[0]


def active_rows(lengths: Array, t: int) -> Array:
    """(B, 1), True where step t belongs to the sequence; True for all rows without lengths."""
    return True if lengths is None else (t < lengths)[:, None]


def idle_rows(lengths: Array, t: int) -> Array:
    """For the CPU: the indices of the rows whose sequence is over at step t; None if there are none."""
    if lengths is None:
        return None
    idle = np.flatnonzero(lengths <= t)
    return idle if idle.size else None


def state_gradient(active: Array, dy: Array, direct: Array, product: Array, like: Array) -> tuple[Array, Array]:
    """The gradient of h', 0 in idle rows, and what passes by in them (direct + product), in float32 or wider."""
    xp, dtype = array_module(like), wide(like.dtype)
    past = xp.zeros(like.shape, dtype)
    for part in (direct, product):
        if part is not None:
            past = past + part.astype(dtype)
    return xp.where(active, past if dy is None else past + dy.astype(dtype), 0), past


def state_gradient_cpu(out: np.ndarray, dy: Array, direct: Array, product: Array, idle: Array) -> Array:
    """out = the gradient of h', 0 in idle rows; returns what passes by in those rows, None if there are none."""
    past = None
    there = [part for part in (direct, product) if part is not None]
    if idle is not None:
        past = sum(part[idle] for part in there) if there else 0
    if dy is not None:
        there.append(dy)
    if len(there) < 2:
        out[...] = there[0] if there else 0
    else:
        np.add(there[0], there[1], out=out)
        for part in there[2:]:
            out += part
    if idle is not None:
        out[idle] = 0
    return past


def logistic_inplace(x: np.ndarray) -> None:
    """For the CPU: x = 1 / (1 + exp(-x)), with all digits of small values; below -88 it is 0."""
    np.multiply(x, -1, out=x)  # np.negative reads neighbours where both strides are 16 bytes (NumPy 2.4.6)
    with np.errstate(over="ignore"):  # to inf, and 1 / inf = 0; a pass that clips would cost a third of the exp
        np.exp(x, out=x)
    x += 1
    np.reciprocal(x, out=x)


# ------------------------------------------------------------------------------------------------------- kernels

CELL_THREADS = 128  # of a block, at most


def launch_cell(
    function: str, h: Array, outputs: tuple[Array, ...], inputs: tuple[Any, ...], lengths: Array, t: int
) -> None:
    """Run a kernel of kernels/rnn_cell.cu: a thread for each number of the state h (B, H)."""
    B, H = h.shape
    threads = min(CELL_THREADS, -(-H // 32) * 32)  # whole warps, but none without a number of a narrow state
    args = (*outputs, *inputs, lengths, np.int32(t), np.int64(B), np.int32(H))
    launch("rnn_cell", function, (B, -(-H // threads)), (threads,), args, storage=h.dtype)


def plain(array: Array) -> Array:
    """`contiguous` that lets None pass."""
    return None if array is None else contiguous(array)


# ------------------------------------------------------------------------------------------------------- rnn_cell


def check_nonlinearity(nonlinearity: str) -> None:
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")


def _reference(
    gi: Array, gh: Array, h: Array, nonlinearity: str = "tanh", lengths: Array = None, t: int = 0, out: Out = None
) -> Array:
    """gi, gh, h: (B, H). out: one array that h' is written to. Returns h' like h."""
    check_nonlinearity(nonlinearity)
    xp, dtype = array_module(gi, gh, h), wide(gi.dtype)
    a = gi.astype(dtype) + gh.astype(dtype)
    new = xp.tanh(a) if nonlinearity == "tanh" else xp.maximum(a, 0)
    return into(out, xp.where(active_rows(lengths, t), new.astype(h.dtype), h))


def _cpu(
    gi: Array, gh: Array, h: Array, nonlinearity: str = "tanh", lengths: Array = None, t: int = 0, out: Out = None
) -> Array:
    check_nonlinearity(nonlinearity)
    new = empty(h.shape, h.dtype, like=h) if out is None else out[0]
    np.add(gi, gh, out=new)
    if nonlinearity == "tanh":
        np.tanh(new, out=new)
    else:
        np.clip(new, 0, np.inf, out=new)
    if (idle := idle_rows(lengths, t)) is not None:
        new[idle] = h[idle]
    return new


def _cuda(
    gi: Array, gh: Array, h: Array, nonlinearity: str = "tanh", lengths: Array = None, t: int = 0, out: Out = None
) -> Array:
    check_nonlinearity(nonlinearity)
    new = empty(h.shape, h.dtype, like=h) if out is None else out[0]
    check_shape("rnn_cell", h.shape, gi=gi, gh=gh, out=new)
    check_shape("rnn_cell", (len(h),), lengths=lengths)
    inputs = (contiguous(gi), contiguous(gh), contiguous(h))
    launch_cell(f"rnn_cell_{nonlinearity}", h, (new,), inputs, lengths, t)
    return new


rnn_cell = Op("rnn_cell", reference=_reference, cpu=_cpu, cuda=_cuda)


def _backward_reference(
    dy: Array,
    direct: Array,
    product: Array,
    y: Array,
    nonlinearity: str = "tanh",
    lengths: Array = None,
    t: int = 0,
    out: Out = None,
) -> tuple[Array, Array]:
    """dy, direct, product: (B, H) or None. y: h', as `rnn_cell` returned it. out: arrays for the results.

    Returns da, the gradient of gi and gh, and the direct part of the gradient of h: that of idle rows, None without
    lengths. The rest of it is da W_hh'.
    """
    check_nonlinearity(nonlinearity)
    xp, dtype = array_module(dy, direct, product, y), wide(y.dtype)
    y_wide, active = y.astype(dtype), active_rows(lengths, t)
    dh, past = state_gradient(active, dy, direct, product, y)
    slope = 1 - y_wide * y_wide if nonlinearity == "tanh" else (y_wide > 0).astype(dtype)
    da = xp.where(active, dh * slope, 0).astype(y.dtype)
    return into(out, da, None if lengths is None else xp.where(active, 0, past).astype(y.dtype))


def _backward_cpu(
    dy: Array,
    direct: Array,
    product: Array,
    y: Array,
    nonlinearity: str = "tanh",
    lengths: Array = None,
    t: int = 0,
    out: Out = None,
) -> tuple[Array, Array]:
    check_nonlinearity(nonlinearity)
    da, passed = out or _gradients(y, lengths)
    idle = idle_rows(lengths, t)
    past = state_gradient_cpu(da, dy, direct, product, idle)
    if nonlinearity == "tanh":
        slope = np.multiply(y, y)
        np.subtract(1, slope, out=slope)
        da *= slope
    else:
        keep_where(y > 0, da, da)
    if passed is not None:
        passed.fill(0)
        if idle is not None:
            da[idle], passed[idle] = 0, past
    return da, passed


def _backward_cuda(
    dy: Array,
    direct: Array,
    product: Array,
    y: Array,
    nonlinearity: str = "tanh",
    lengths: Array = None,
    t: int = 0,
    out: Out = None,
) -> tuple[Array, Array]:
    check_nonlinearity(nonlinearity)
    da, passed = out or _gradients(y, lengths)
    check_shape("rnn_cell_backward", y.shape, dy=dy, direct=direct, product=product, da=da, out=passed)
    check_shape("rnn_cell_backward", (len(y),), lengths=lengths)
    inputs = (plain(dy), plain(direct), plain(product), contiguous(y))
    launch_cell(f"rnn_cell_{nonlinearity}_backward", y, (da, passed), inputs, lengths, t)
    return da, passed


def _gradients(y: Array, lengths: Array) -> tuple[Array, Array]:
    da, passed = empty(y.shape, y.dtype, like=y), empty(y.shape, y.dtype, like=y)
    return da, None if lengths is None else passed


rnn_cell_backward = Op("rnn_cell_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)

# ------------------------------------------------------------------------------------------------------- lengths


def host_integers(lengths: Any, who: str) -> np.ndarray:
    """A list as an array. Raises TypeError for one of unequal rows, which NumPy cannot take."""
    try:
        return np.asarray(lengths)
    except ValueError:
        raise TypeError(f"{who} takes integer lengths, got {lengths!r}") from None


def checked_lengths(lengths: Any, T: int, B: int, like: Array, who: str) -> Array:
    """`lengths` (B,), a list or an array in host memory or beside `like`, as int32 beside `like`; None is None.

    Raises TypeError for what is not integers, ValueError for another shape or a length outside 0..T; of lengths on a
    GPU, the latter when the host next reads from it (gpulayers/cuda.py).
    """
    if lengths is None:
        return None
    given = lengths if is_array(lengths) else host_integers(lengths, who)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"{who} takes integer lengths, got {given.dtype}")
    if given.shape != (B,):
        raise ValueError(f"{who} takes a length for each of the {B} sequences, got shape {given.shape}")
    if isinstance(given, np.ndarray):
        wrong = np.flatnonzero((given < 0) | (given > T))
        if wrong.size:
            raise ValueError(f"{who}: the length of sequence {wrong[0]} is {given[wrong[0]]}, outside 0..{T}")
        return to_device(given.astype(np.int32), device_of(like))
    array_module(given, like)
    given = given.astype(np.int32)
    args = (error_flag(like), given, np.int32(T + 1), np.int32(B))  # reading them here would wait for the device
    launch("rnn_cell", "check_lengths", (-(-B // CELL_THREADS),), (CELL_THREADS,), args)
    return given
