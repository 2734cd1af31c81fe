"""Conversions between number types (`cvt`), with rounding, saturation and flushing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import Context, Step
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.floating import is_float
from gpulayers.emulator.formats import (
    FORMATS,
    direct,
    float32_to_bfloat16,
    float64_to_bfloat16,
    flush,
    narrow_float32,
)
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray


INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


CONVERSION_FLAGS = ("rn", "rz", "rm", "rp", "rna", "ftz", "sat", "relu", "satfinite", *INTEGRAL)


@instruction("cvt")
def build_conversion(given: Instruction, context: Context) -> Step:
    flags = given.allow(*CONVERSION_FLAGS)
    if len(given.types) != 2:
        raise given.unknown()
    target, source = given.types
    if target in ("f16x2", "bf16x2"):
        return _build_pair(given, context)
    if target == "tf32":
        return elementwise(given, context, _to_tf32(given), ["f32"], "tf32")
    if not is_float(source) and not is_float(target):
        saturate = "sat" in flags
        return elementwise(given, context, lambda a: _integer(a, DTYPES[target], saturate), [source], target)
    function = _conversion(given, target, source)
    return elementwise(given, context, function, [source], target)


def _integer(a: Array, dtype: np.dtype, saturate: bool) -> Array:
    if saturate:
        limits = np.iinfo(dtype)
        own = np.iinfo(a.dtype)
        a = np.clip(a, a.dtype.type(max(limits.min, own.min)), a.dtype.type(min(limits.max, own.max)))
    return a.astype(dtype)


def _conversion(given: Instruction, target: str, source: str) -> Callable[[Array], Array]:
    if is_float(source) and not is_float(target):
        return _float_to_integer(given, target, source)
    mode = next((flag for flag in given.flags if flag in ("rn", "rz", "rm", "rp")), "rn")
    ftz, saturate = "ftz" in given.flags, "sat" in given.flags
    integral = next((INTEGRAL[flag] for flag in given.flags if flag in INTEGRAL), None)
    unpack = FORMATS[source].unpack if is_float(source) else _exact_double

    def convert(a: Array) -> Array:
        value = unpack(a)
        if ftz and source == "f32":
            value = flush(value)
        if integral is not None:
            value = integral(value)
        if saturate:
            value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1))
        if "relu" in given.flags:
            value = np.where(value < 0, value.dtype.type(0), value)
        if target == "f32" and mode == "rn" and not is_float(source):
            return a.astype(np.float32)  # straight from the integer: float64 does not hold all 64-bit ones
        result = _narrow(value, target, mode)
        return flush(result) if ftz and target == "f32" else result

    return convert


def _exact_double(a: Array) -> Array:
    return a.astype(np.float64)


def _narrow(value: Array, target: str, mode: str) -> Array:
    """Round a wide value to the target format."""
    if target == "f64":
        return value.astype(np.float64)
    if target == "f32":
        return value.astype(np.float32) if mode == "rn" else narrow_float32(value.astype(np.float64), mode)
    if target == "bf16":
        if mode == "rz":
            return float32_to_bfloat16(value.astype(np.float32), "rz")
        return float64_to_bfloat16(value) if value.dtype == np.float64 else float32_to_bfloat16(value)
    nearest = value.astype(np.float16)
    return nearest if mode == "rn" else direct(nearest, value.astype(np.float64) - nearest.astype(np.float64), mode)


def _float_to_integer(given: Instruction, target: str, source: str) -> Callable[[Array], Array]:
    """Round, then clamp to the target's range; NaN becomes 0, or the top bit for 64-bit targets."""
    dtype, form = DTYPES[target], FORMATS[source]
    limits = np.iinfo(dtype)
    integral = next((INTEGRAL[flag] for flag in given.flags if flag in INTEGRAL), None)
    if integral is None:
        raise given.unknown("no rounding to an integer")
    nan = dtype.type(limits.min if dtype.kind == "i" else 1 << 63) if dtype.itemsize == 8 else dtype.type(0)

    def convert(a: Array) -> Array:
        value = form.unpack(a)
        if "ftz" in given.flags and source == "f32":
            value = flush(value)
        rounded = integral(value.astype(np.float64))
        low, high = rounded <= float(limits.min), rounded >= float(limits.max)
        inside = np.where(low | high | np.isnan(rounded), 0.0, rounded).astype(dtype)
        clamped = np.where(low, dtype.type(limits.min), np.where(high, dtype.type(limits.max), inside))
        return np.where(np.isnan(rounded), nan, clamped)

    return convert


def _build_pair(given: Instruction, context: Context) -> Step:
    """`cvt.rn.f16x2.f32 d, a, b`: a becomes the upper half, b the lower."""
    target, source = given.types
    if source != "f32":
        raise given.unknown()
    half = {"f16x2": "f16", "bf16x2": "bf16"}[target]
    convert = _conversion(given, half, source)

    def pair(a: Array, b: Array) -> Array:
        high, low = (convert(v).view(np.uint16).astype(np.uint32) for v in (a, b))
        return (high << np.uint32(16)) | low

    return elementwise(given, context, pair, ["f32", "f32"], target)


def _to_tf32(given: Instruction) -> Callable[[Array], Array]:
    """float32 with 10 bits of mantissa: `.rna` ties away from zero, `.rn` ties to even, `.rz` truncates."""

    def convert(a: Array) -> Array:
        bits = np.ascontiguousarray(a).view(np.uint32)
        if "rn" in given.flags:
            moved = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        else:
            moved = bits if "rz" in given.flags else bits + np.uint32(0x1000)
        return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), moved & np.uint32(0xFFFFE000))

    return convert
