"""Gated linear units: of the two halves a and b of each row, y = a g(b).

    da = dy g(b)                db = dy a g'(b)

gate, the g:

    sigmoid      s(b), GLU                      s(b) (1 - s(b))
    silu         b s(b), SwiGLU                 s(b) (1 + b (1 - s(b)))
    gelu         b Phi(b), GEGLU                Phi(b) + b phi(b)
    gelu_tanh    the same by the tanh formula   ops/gelu.py

Sources: Dauphin et al., Language modeling with gated convolutional networks, 2016, section 2 (GLU); Shazeer, GLU
variants improve transformer, 2020, equations 4 and 5.
"""

from collections.abc import Iterator

import numpy as np

from gpulayers.backend import Array, empty, wide
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import MAP_THREADS
from gpulayers.ops.gelu import exact_piece, tanh_piece, value_and_derivative
from gpulayers.ops.op import Op, check_like, row_blocks
from gpulayers.ops.sigmoid import logistic, one_plus_exp, silu_piece

GATES = ("sigmoid", "silu", "gelu", "gelu_tanh")  # in the order of `Gate` in kernels/glu.cu


def _check(gate: str) -> None:
    if gate not in GATES:
        raise ValueError(f"glu: gate must be one of {', '.join(GATES)}, got {gate!r}")


def _gate(gate: str, b: Array) -> tuple[Array, Array]:
    """g(b) and g'(b)."""
    _check(gate)
    if gate == "gelu":
        return value_and_derivative(b, None, "none")
    if gate == "gelu_tanh":
        return value_and_derivative(b, None, "tanh")
    s = logistic(b)
    return (s, s * (1 - s)) if gate == "sigmoid" else (b * s, s * (1 + b * (1 - s)))


def _gate_piece(gate: str, b: np.ndarray, g: np.ndarray, slope: np.ndarray | None, work: list[np.ndarray]) -> None:
    """The same of a piece on the CPU, into g, and into `slope` unless it is None."""
    _check(gate)
    if gate == "gelu":
        exact_piece(b, g, slope, work)
    elif gate == "gelu_tanh":
        tanh_piece(b, g, slope, work)
    elif gate == "silu":
        silu_piece(b, g, slope, work[0])
    else:
        one_plus_exp(b, g)
        np.reciprocal(g, out=g)
        if slope is not None:
            np.subtract(1, g, out=slope)
            slope *= g


def _halves(x: Array) -> tuple[Array, Array]:
    cols = x.shape[1] // 2
    return x[:, :cols], x[:, cols:]


# ----------------------------------------------------------------------------------------------------- forward


def _reference(x: Array, gate: str) -> Array:
    """x: (rows, 2 cols), the values a before the gates b. gate: one of GATES. Returns y, (rows, cols)."""
    a, b = _halves(x.astype(wide(x.dtype)))
    return (a * _gate(gate, b)[0]).astype(x.dtype)


@np.errstate(over="ignore")  # exp(-b) is inf where s(b) is 0
def _cpu(x: Array, gate: str) -> Array:
    a, b = _halves(x)
    y = empty(a.shape, x.dtype, like=x)
    for place, g, _, work in _tiles(y, gate):
        _gate_piece(gate, b[place], g, None, work)
        np.multiply(a[place], g, out=y[place])
    return y


TILE = 1 << 15  # elements: the work arrays of a tile are 128 KB each
WORK_ARRAYS = {"sigmoid": 0, "silu": 1, "gelu_tanh": 2, "gelu": 5}  # beside g and slope


def _tiles(y: Array, gate: str) -> Iterator[tuple[tuple[slice, slice], np.ndarray, np.ndarray, list[np.ndarray]]]:
    """Places of y, none too large for the cache, each with arrays of its shape: g, slope, and a list of what the gate
    works in."""
    _check(gate)
    rows, cols = y.shape
    blocks = list(row_blocks(rows, cols, TILE))
    width = min(cols, TILE)
    size = (blocks[0].stop if blocks else 0) * width
    memory = [empty(size, y.dtype, like=y) for _ in range(2 + WORK_ARRAYS[gate])]
    for block in blocks:
        for start in range(0, cols, TILE):
            part = slice(start, min(start + TILE, cols))
            shape = block.stop - block.start, part.stop - start
            g, slope, *work = (m[: shape[0] * shape[1]].reshape(shape) for m in memory)
            yield (block, part), g, slope, work


def _cuda(x: Array, gate: str) -> Array:
    y = empty((x.shape[0], x.shape[1] // 2), x.dtype, like=x)
    _launch("glu", gate, y, y, x)
    return y


def _launch(function: str, gate: str, y: Array, *arrays: Array) -> None:
    """A thread for each 16 bytes of an array like y."""
    _check(gate)
    threads = -(-y.size * y.dtype.itemsize // 16)
    args = (*map(contiguous, arrays), np.int32(GATES.index(gate)), np.int32(y.shape[1]), np.int64(y.size))
    launch("glu", function, (-(-threads // MAP_THREADS),), (MAP_THREADS,), args, storage=y.dtype)


glu = Op("glu", reference=_reference, cpu=_cpu, cuda=_cuda)

# ---------------------------------------------------------------------------------------------------- backward


def _backward_reference(dy: Array, x: Array, gate: str) -> Array:
    """dy: (rows, cols). x: what forward took. Returns dx like x."""
    a, b = _halves(x.astype(wide(x.dtype)))
    g, slope = _gate(gate, b)
    dx = empty(x.shape, x.dtype, like=x)
    da, db = _halves(dx)
    da[...] = dy * g
    db[...] = dy * a * slope
    return dx


@np.errstate(over="ignore")
def _backward_cpu(dy: Array, x: Array, gate: str) -> Array:
    (a, b), dx = _halves(x), empty(x.shape, x.dtype, like=x)
    da, db = _halves(dx)
    for place, g, slope, work in _tiles(dy, gate):
        _gate_piece(gate, b[place], g, slope, work)
        np.multiply(dy[place], g, out=da[place])
        slope *= a[place]
        np.multiply(dy[place], slope, out=db[place])
    return dx


def _backward_cuda(dy: Array, x: Array, gate: str) -> Array:
    dx = empty(x.shape, x.dtype, like=x)
    check_like("glu_backward", _halves(x)[0], dy=dy)
    _launch("glu_backward", gate, dy, dx, dy, x)
    return dx


glu_backward = Op("glu_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
