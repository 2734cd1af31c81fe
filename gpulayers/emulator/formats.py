"""Number formats: packing of halves and pairs, flushing of subnormals, directed and odd rounding.

Arithmetic is done in a wider NumPy type and rounded once. Where the wider type may round itself first (fused
multiply-add), the intermediate is rounded to odd, after which a second rounding cannot go wrong
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
TINY32 = np.float32(np.finfo(np.float32).tiny)
TINY16 = np.float32(np.finfo(np.float16).tiny)


def flush(x: Array, tiny: np.float32 = TINY32) -> Array:
    """Subnormal values, below `tiny`, become zeros of the same sign (`.ftz`)."""
    small = np.abs(x) < tiny
    if not small.any():
        return x
    return np.where(small, np.copysign(x.dtype.type(0), x), x)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded float64 product and its exact error (Veltkamp and Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def to_odd(value: Array, error: Array) -> Array:
    """`value + error`, |error| under half an ulp of `value`, rounded to odd: inexact results get an odd last bit."""
    even = (np.ascontiguousarray(value).view(np.uint64) & np.uint64(1)) == 0
    fix = even & (error != 0) & np.isfinite(value)
    if not fix.any():
        return value
    return np.where(fix, np.nextafter(value, np.copysign(np.inf, error)), value)


def fused_wide(a: Array, b: Array, c: Array) -> Array:
    """a b + c in float64 for narrower inputs, whose product is exact; the sum is rounded to odd."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    half_way = np.uint64(0x1FFFFFFF)
    bits = np.atleast_1d(total).view(np.uint64) & half_way
    if not (bits == np.uint64(0x10000000)).any():  # no float32 midpoint: the second rounding is harmless
        return total
    return to_odd(*two_sum(product, addend))


def fused_double(a: Array, b: Array, c: Array) -> Array:
    """a b + c in float64 with one rounding (Boldo and Melquiond, algorithm 5); plain where parts overflow."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = two_product(a, b)
    top, rest = two_sum(c, low)
    sum_high, sum_low = two_sum(high, top)
    result = sum_high + to_odd(*two_sum(rest, sum_low))
    return np.where(np.isfinite(result) & np.isfinite(low), result, a * b + c)


def narrow_float32(x: Array, mode: str = "rn") -> Array:
    """float64 -> float32 in one of PTX's rounding modes."""
    nearest = x.astype(np.float32)
    return nearest if mode == "rn" else direct(nearest, x - nearest.astype(np.float64), mode)


def direct(nearest: Array, error: Array, mode: str) -> Array:
    """Move a value rounded to nearest to the neighbour that the mode asks for; `error` = exact - nearest.

    An infinity that nearest made of a finite value has error -inf and comes back to the largest number."""
    below, above = (nearest.dtype.type(-np.inf), nearest.dtype.type(np.inf))
    down = {"rm": error < 0, "rp": False, "rz": (error < 0) & (nearest > 0)}[mode]
    up = {"rm": False, "rp": error > 0, "rz": (error > 0) & (nearest < 0)}[mode]
    return np.where(down, np.nextafter(nearest, below), np.where(up, np.nextafter(nearest, above), nearest))


def bfloat16_to_float32(bits: Array) -> Array:
    """Raw bfloat16 bits -> float32, exact."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(x: Array, mode: str = "rn") -> Array:
    """float32 -> raw bfloat16 bits, to nearest even or towards zero; NaN becomes 0x7fff as on the device."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if mode == "rn":
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    else:
        rounded = bits
    high = (rounded >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), high)


def float64_to_bfloat16(x: Array) -> Array:
    """float64 -> raw bfloat16 bits with one rounding, by way of a float32 rounded to odd."""
    single = x.astype(np.float32)
    error = x - single.astype(np.float64)
    even = (single.view(np.uint32) & np.uint32(1)) == 0
    fix = even & (error != 0) & np.isfinite(single)
    toward = np.copysign(np.float32(np.inf), error.astype(np.float32))
    return float32_to_bfloat16(np.where(fix, np.nextafter(single, toward), single))


class Format(NamedTuple):
    """How a float type computes: raw register -> values (pairs become arrays of twice the length) and back."""

    unpack: Callable[[Array], Array]
    pack: Callable[[Array], Array]
    pack_double: Callable[[Array], Array]
    is_pair: bool


def _same(x: Array) -> Array:
    return x


def _to_float32(x: Array) -> Array:
    return x.astype(np.float32)


def _to_float16(x: Array) -> Array:
    return x.astype(np.float16)


def _halves(x: Array, dtype: type) -> Array:
    return np.ascontiguousarray(x).view(np.uint32).reshape(-1).view(dtype)


FORMATS: dict[str, Format] = {
    "f32": Format(_same, _same, _to_float32, False),
    "f64": Format(_same, _same, _same, False),
    "f16": Format(_to_float32, _to_float16, _to_float16, False),
    "bf16": Format(bfloat16_to_float32, float32_to_bfloat16, float64_to_bfloat16, False),
    "f16x2": Format(
        lambda x: _halves(x, np.float16).astype(np.float32),
        lambda x: x.astype(np.float16).view(np.uint32),
        lambda x: x.astype(np.float16).view(np.uint32),
        True,
    ),
    "bf16x2": Format(
        lambda x: bfloat16_to_float32(_halves(x, np.uint16)),
        lambda x: float32_to_bfloat16(x).view(np.uint32),
        lambda x: float64_to_bfloat16(x).view(np.uint32),
        True,
    ),
}
