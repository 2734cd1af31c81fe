"""Floating-point instructions: correctly rounded ones against exact fractions, approximate ones within an ulp or so."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.emulator.formats import fused_double, fused_wide

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 1.1754944e-38]
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
FLUSH = np.float32(np.finfo(np.float32).tiny)


def floats(code: str, seed: int, size: int = 200) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size) * 2.0 ** rng.integers(-10, 10, size)
    values[: len(SPECIAL)] = np.roll(SPECIAL, seed)
    with np.errstate(all="ignore"):
        return values.astype(DTYPES[code])


def raw(array: np.ndarray) -> np.ndarray:
    """bfloat16 goes through the harness as bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits, but for the payload of NaNs."""
    if expected.dtype.name == "bfloat16":
        found = found.view(ml_dtypes.bfloat16)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[~nan]), np.signbit(expected[~nan]))


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic(ptx, name, code):
    a, b = floats(code, 1), floats(code, 2)
    suffix = f"rn.{code}" if code in ("f32", "f64") else code
    with np.errstate(all="ignore"):
        wide = BINARY[name](a.astype(np.float64), b.astype(np.float64)) if code != "f64" else BINARY[name](a, b)
        expected = wide.astype(DTYPES[code])
    codes = [code, code]
    same(ptx(f"{name}.{suffix} %d, %a, %b;", code, raw(a), raw(b), codes=codes), expected)


@pytest.mark.parametrize("code", ["f16", "bf16"])
def test_packed_pairs_work_on_both_halves(ptx, code):
    a, b, c = (floats(code, seed, 400) for seed in (1, 2, 3))
    pairs = [np.ascontiguousarray(array).view(np.uint32) for array in (a, b, c)]
    codes = [f"{code}x2"] * 3
    with np.errstate(all="ignore"):
        total = (a.astype(np.float64) + b.astype(np.float64)).astype(DTYPES[code])
        fused = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(DTYPES[code])
    found = ptx(f"add.rn.{code}x2 %d, %a, %b;", f"{code}x2", *pairs[:2], codes=codes[:2])
    same(found.view(np.uint16 if code == "bf16" else np.float16), total)
    found = ptx(f"fma.rn.{code}x2 %d, %a, %b, %c;", f"{code}x2", *pairs, codes=codes)
    same(found.view(np.uint16 if code == "bf16" else np.float16), fused)
    found = ptx(f"neg.{code}x2 %d, %a;", f"{code}x2", pairs[0], codes=codes[:1])
    same(found.view(np.uint16 if code == "bf16" else np.float16), -a)


def fraction_to_float32(value: Fraction) -> np.float32:
    """Round an exact value once, to nearest even: of a candidate and its neighbours the closest."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


normal32 = st.floats(-(2.0**50), 2.0**50, width=32, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(normal32, normal32, normal32)
def test_fused_multiply_add_rounds_once(a, b, c):
    found = fused_wide(*(np.array([x], np.float32) for x in (a, b, c))).astype(np.float32)[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0 or abs(exact) < 2**-120:
        return
    assert found == fraction_to_float32(exact)


def test_fused_multiply_add_where_two_roundings_differ():
    """a b sits just above the midpoint of two float32 numbers, by less than float64 keeps."""
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(2**-80)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    twice = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    once = fused_wide(*(np.array([x]) for x in (a, b, c))).astype(np.float32)[0]
    assert once == fraction_to_float32(exact) != twice


@settings(max_examples=200, deadline=None)
@given(*[st.floats(-1e100, 1e100, allow_subnormal=False)] * 3)
def test_fused_multiply_add_in_double_rounds_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0 or abs(Fraction(a) * Fraction(b)) < Fraction(1, 2**900) or abs(exact) < Fraction(1, 2**900):
        return
    assert fused_double(*(np.array([x]) for x in (a, b, c)))[0] == exact.numerator / exact.denominator


@pytest.mark.parametrize("code", ["f32", "f64"])
def test_fma_and_special_values(ptx, code):
    a, b, c = (floats(code, seed) for seed in (1, 2, 3))
    with np.errstate(all="ignore"):
        expected = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
        expected = expected.astype(DTYPES[code])
    found = ptx(f"fma.rn.{code} %d, %a, %b, %c;", code, a, b, c)
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[special], expected[special])
    np.testing.assert_allclose(found[~special], expected[~special], rtol=1e-7 if code == "f32" else 1e-15)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(ptx, mode):
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(100).astype(np.float32) for _ in range(3))
    exact = {
        "add": lambda x, y, z: x + y,
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
        "div": lambda x, y, z: x / y,
    }
    for name, function in exact.items():
        operands = "%a, %b, %c" if name == "fma" else "%a, %b"
        inputs = (a, b, c) if name == "fma" else (a, b)
        found = ptx(f"{name}.{mode}.f32 %d, {operands};", "f32", *inputs)
        for k in range(len(a)):
            value = function(*(Fraction(float(v[k])) for v in (a, b, c)))
            toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
            one = Fraction(float(found[k]))
            away = np.nextafter(found[k], np.float32(-toward if mode != "rz" else np.copysign(np.inf, found[k])))
            beyond = Fraction(float(away))
            assert min(one, beyond) <= value <= max(one, beyond)


def test_flush_to_zero(ptx):
    a = np.array([1e-40, -1e-40, 1.0, 1e-38, np.nan], np.float32)
    one = np.ones(5, np.float32)
    found = ptx("mul.ftz.f32 %d, %a, %b;", "f32", a, one)
    np.testing.assert_array_equal(found, np.where(np.abs(a) < FLUSH, np.copysign(0, a), a).astype(np.float32))
    assert np.signbit(found[1])
    assert ptx("mul.f32 %d, %a, %b;", "f32", a, one)[0] == a[0]
    tiny = np.full(5, 1.2e-38, np.float32)
    assert not ptx("mul.ftz.f32 %d, %a, 0f3F000000;", "f32", tiny).any()


def test_flush_to_zero_of_halves(ptx):
    a = np.array([1e-6, -1e-6, 1.0, 6.2e-5], np.float16)
    found = ptx("ex2.approx.ftz.f16 %d, %a;", "f16", a)
    np.testing.assert_array_equal(found, np.exp2(np.where(np.abs(a) < 2.0**-14, 0, a)).astype(np.float16))
    small = np.full(4, 5e-6, np.float16)
    assert not ptx("fma.rn.ftz.f16 %d, %a, %b, %b;", "f16", np.full(4, 0.01, np.float16), small).any()


def test_saturation(ptx):
    a = np.array([-1.0, 0.25, 3.0, np.nan, np.inf], np.float32)
    found = ptx("add.sat.f32 %d, %a, 0f00000000;", "f32", a)
    np.testing.assert_array_equal(found, np.float32([0, 0.25, 1, 0, 1]))


@pytest.mark.parametrize("code", DTYPES)
def test_min_and_max(ptx, code):
    a, b = floats(code, 1), floats(code, 2)
    wide = a.astype(np.float64), b.astype(np.float64)
    for name, number, nan in (("min", np.fmin, np.minimum), ("max", np.fmax, np.maximum)):
        found = ptx(f"{name}.{code} %d, %a, %b;", code, raw(a), raw(b), codes=[code] * 2)
        np.testing.assert_array_equal(widen(found, code), number(*wide))
        if code != "f64":
            found = ptx(f"{name}.NaN.{code} %d, %a, %b;", code, raw(a), raw(b), codes=[code] * 2)
            np.testing.assert_array_equal(widen(found, code), nan(*wide))


def widen(found: np.ndarray, code: str) -> np.ndarray:
    return (found.view(ml_dtypes.bfloat16) if code == "bf16" else found).astype(np.float64)


def test_zeros_are_ordered_in_min_and_max(ptx):
    a, b = np.array([0.0, -0.0], np.float32), np.array([-0.0, 0.0], np.float32)
    assert np.signbit(ptx("min.f32 %d, %a, %b;", "f32", a, b)).all()
    assert not np.signbit(ptx("max.f32 %d, %a, %b;", "f32", a, b)).any()


@pytest.mark.parametrize("code", DTYPES)
def test_neg_and_abs_change_the_sign_bit_only(ptx, code):
    a = floats(code, 1)
    same(ptx(f"neg.{code} %d, %a;", code, raw(a), codes=[code]), -a)
    same(ptx(f"abs.{code} %d, %a;", code, raw(a), codes=[code]), np.abs(a))


def test_copysign_and_testp(ptx):
    a, b = floats("f32", 1), floats("f32", 2)
    same(ptx("copysign.f32 %d, %a, %b;", "f32", a, b), np.copysign(b, a))
    np.testing.assert_array_equal(ptx("testp.finite.f32 %d, %a;", "pred", a), np.isfinite(a))
    np.testing.assert_array_equal(ptx("testp.subnormal.f32 %d, %a;", "pred", a), (a != 0) & (np.abs(a) < FLUSH))


UNARY = {
    "ex2.approx": np.exp2,
    "lg2.approx": np.log2,
    "sin.approx": np.sin,
    "cos.approx": np.cos,
    "tanh.approx": np.tanh,
    "rcp.approx": lambda x: 1 / x,
    "rsqrt.approx": lambda x: 1 / np.sqrt(x),
    "sqrt.rn": np.sqrt,
    "rcp.rn": lambda x: 1 / x,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(ptx, name):
    a = floats("f32", 1)
    with np.errstate(all="ignore"):
        expected = UNARY[name](a.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(ptx(f"{name}.f32 %d, %a;", "f32", a), expected)


@pytest.mark.parametrize("name", ["ex2.approx", "tanh.approx"])
def test_unary_functions_of_halves(ptx, name):
    a = floats("f16", 1)
    with np.errstate(all="ignore"):
        expected = UNARY[name](a.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(ptx(f"{name}.f16 %d, %a;", "f16", a), expected)


@pytest.mark.parametrize("code", ["f32", "f64"])
def test_division(ptx, code):
    a, b = floats(code, 1), floats(code, 2)
    with np.errstate(all="ignore"):
        expected = a / b
    np.testing.assert_array_equal(ptx(f"div.rn.{code} %d, %a, %b;", code, a, b), expected)
    if code == "f32":
        np.testing.assert_array_equal(ptx("div.full.f32 %d, %a, %b;", code, a, b), expected)
        np.testing.assert_array_equal(ptx("div.approx.f32 %d, %a, %b;", code, a, b), expected)
