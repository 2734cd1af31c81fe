"""Rotary positions: pairs of channels turned by an angle that grows with the position.

    y1 = x1 cos - x2 sin        y2 = x2 cos + x1 sin

Channel i of the first half is paired with channel i of the second half (the halves are contiguous, so this is the fast
layout; the paper pairs neighbours, which is the same up to one fixed permutation of the channels). A rotation's
transpose is the rotation by the negative angle: backward is `rotary(dy, cos, -sin)`.

Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021, equations 14, 15 and 34.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, keep_on, launch, place_of
from gpulayers.ops.op import Op


def _reference(x: Array, cos: Array, sin: Array, out: Array = None) -> Array:
    """x: (B, T, H, d), may be a strided view. cos, sin: (T, d / 2). out: like x, may be x itself. Returns out or y."""
    xp = array_module(x, cos, sin)
    half = x.shape[-1] // 2
    x1, x2 = (part.astype(wide(x.dtype)) for part in (x[..., :half], x[..., half:]))
    cos, sin = cos[:, None], sin[:, None]  # (T, 1, d / 2)
    y = xp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)
    if out is None:
        return y
    out[...] = y
    return out


def _cpu(x: Array, cos: Array, sin: Array, out: Array = None) -> Array:
    if out is None:
        out = empty(x.shape, x.dtype, like=x)
    half = x.shape[-1] // 2
    cos, sin = cos[:, None], sin[:, None]
    work = empty((2, *x.shape[1:3], half), x.dtype, like=x)
    for x_sample, y in zip(x, out, strict=True):
        x1, x2 = x_sample[..., :half], x_sample[..., half:]
        np.multiply(x2, sin, out=work[0])
        np.multiply(x1, sin, out=work[1])
        np.multiply(x1, cos, out=y[..., :half])
        np.multiply(x2, cos, out=y[..., half:])
        y[..., :half] -= work[0]
        y[..., half:] += work[1]
    return out


THREADS = 256


def _cuda(x: Array, cos: Array, sin: Array, out: Array = None) -> Array:
    B, T, H, d = x.shape
    if out is None:
        out = empty(x.shape, x.dtype, like=x)
    if out.dtype != x.dtype or out.shape != x.shape or (x.size and out.strides[3] != out.dtype.itemsize):
        raise ValueError(f"rotary: out must be {x.dtype} {x.shape} with its last axis in one piece, as x")
    if x.strides[3] != x.dtype.itemsize:
        x = contiguous(x)
    strides = [np.int64(stride // a.dtype.itemsize) for a in (out, x) for stride in a.strides[:3]]
    threads = B * T * H * -(-(d // 2) * x.dtype.itemsize // 16)
    # Addresses instead of arrays: the kernel takes the strides of views, which `launch` would refuse.
    args = (np.uint64(out.data.ptr), np.uint64(x.data.ptr), contiguous(cos), contiguous(sin), *strides)
    args = (*args, np.int32(T), np.int32(H), np.int32(d // 2), np.int64(threads))
    launch("rotary", "rotary", (-(-threads // THREADS),), (THREADS,), args, storage=x.dtype)
    return out


rotary = Op("rotary", reference=_reference, cpu=_cpu, cuda=_cuda)


def rotary_tables(length: int, dim: int, base: float, like: Array, start: int = 0) -> tuple[Array, Array]:
    """(cos, sin) of the angles position / base^(2 i / dim), positions start..start + length - 1, i in 0..dim / 2 - 1.

    Each (length, dim / 2), of the dtype (float32 or wider) and on the device of `like`. Raises ValueError for a start
    below 0.
    """
    cos, sin = _tables(table_rows(start, length), dim, base, wide(like.dtype), *place_of(like))
    return cos[start : start + length], sin[start : start + length]


@functools.lru_cache(maxsize=16)
def _tables(rows: int, dim: int, base: float, dtype: DTypeLike, xp: Any, device: int) -> tuple[Array, ...]:
    angle = angles(rows, dim, base)
    return keep_on(xp, device, np.cos(angle).astype(dtype), np.sin(angle).astype(dtype))


def angles(rows: int, dim: int, base: float) -> np.ndarray:
    """position / base^(2 i / dim), float64, (rows, ceil(dim / 2))."""
    return np.arange(rows)[:, None] * base ** (-np.arange(0, dim, 2) / dim)


def table_rows(start: int, length: int) -> int:
    """Rows of a table that has the positions start..start + length - 1, rounded up: few tables serve all lengths.

    Raises ValueError for a negative start, which as an index would count from the table's end.
    """
    if start < 0:
        raise ValueError(f"positions begin at 0: start must be 0 or more, got {start}")
    return 1 << max(0, start + length - 1).bit_length()
