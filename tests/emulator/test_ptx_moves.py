"""Moves, conversions, comparisons and selections against NumPy."""

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest

INTEGERS = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32,
            "s64": np.int64, "u64": np.uint64}  # fmt: skip
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize(("target", "source"), list(permutations(["s32", "u32", "s64", "u64", "s16", "u16"], 2)))
def test_between_integers(ptx, target, source):
    limits = np.iinfo(INTEGERS[source])
    a = np.random.default_rng(1).integers(limits.min, limits.max, 200, dtype=INTEGERS[source])
    found = ptx(f"cvt.{target}.{source} %d, %a;", target, a)
    np.testing.assert_array_equal(found, a.astype(INTEGERS[target]))
    saturated = ptx(f"cvt.sat.{target}.{source} %d, %a;", target, a)
    bounds = np.iinfo(INTEGERS[target])
    expected = [min(max(int(x), bounds.min), bounds.max) for x in a]
    np.testing.assert_array_equal(saturated, np.array(expected, INTEGERS[target]))


def test_bytes_are_extended_by_their_sign(ptx):
    a = np.random.default_rng(1).integers(0, 2**32, 200, dtype=np.uint32)
    np.testing.assert_array_equal(ptx("cvt.s32.s8 %d, %a;", "s32", a), a.astype(np.int8).astype(np.int32))
    np.testing.assert_array_equal(ptx("cvt.u32.u8 %d, %a;", "u32", a), a & 0xFF)
    np.testing.assert_array_equal(ptx("cvt.s64.s16 %d, %a;", "s64", a), a.astype(np.int16).astype(np.int64))


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u64", "u16", "s8"])
def test_floats_to_integers_clamp(ptx, source, target):
    rng = np.random.default_rng(1)
    a = (rng.standard_normal(100) * 10.0 ** rng.integers(-2, 12, 100)).astype(np.float64)
    a[:8] = [np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -1.5, np.nan]
    with np.errstate(over="ignore"):
        a = a.astype(FLOATS[source])
    bounds = np.iinfo(INTEGERS[target])
    for mode, function in {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}.items():
        register = target if target != "s8" else "s32"
        found = ptx(f"cvt.{mode}.{target}.{source} %d, %a;", register, a)
        for x, y in zip(a.astype(np.float64), found, strict=True):
            if not np.isnan(x):
                whole = x if np.isinf(x) else int(function(x))
                assert int(y) == min(max(whole, bounds.min), bounds.max)
        if target.endswith("32"):
            assert found[7] == 0


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", FLOATS)
def test_integers_to_floats(ptx, source, target):
    limits = np.iinfo(INTEGERS[source])
    a = np.random.default_rng(1).integers(limits.min, limits.max, 200, dtype=INTEGERS[source])
    a >>= np.random.default_rng(2).integers(0, limits.bits, 200).astype(a.dtype)
    with np.errstate(over="ignore"):
        expected = a.astype(FLOATS[target])
    np.testing.assert_array_equal(ptx(f"cvt.rn.{target}.{source} %d, %a;", target, a), expected)
    if target == "f32":
        down = ptx(f"cvt.rz.f32.{source} %d, %a;", "f32", a)
        assert all(abs(int(y)) <= abs(int(x)) for x, y in zip(a, down, strict=True))


@pytest.mark.parametrize(("target", "source"), list(permutations(FLOATS, 2)))
def test_between_floats(ptx, target, source):
    rng = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        a = (rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200)).astype(FLOATS[source])
        expected = a.astype(FLOATS[target])
    narrower = np.dtype(FLOATS[target]).itemsize < np.dtype(FLOATS[source]).itemsize
    found = ptx(f"cvt.{'rn.' if narrower else ''}{target}.{source} %d, %a;", target, a)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_rounding_to_whole_numbers(ptx, mode, function):
    a = np.array([0.5, 1.5, -0.5, -2.5, 2.4, -2.6, 1e20, np.inf, -0.1], np.float32)
    found = ptx(f"cvt.{mode}.f32.f32 %d, %a;", "f32", a)
    np.testing.assert_array_equal(found, function(a))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(function(a)))


def test_bfloat16_and_pairs(ptx):
    a = (np.random.default_rng(1).standard_normal(200) * 100).astype(np.float32)
    b = a[::-1].copy()
    a[:4] = [np.nan, np.inf, 3.4e38, 1.00390625]
    expected = a.astype(ml_dtypes.bfloat16).view(np.uint16)
    found = ptx("cvt.rn.bf16.f32 %d, %a;", "bf16", a, codes=["f32"])
    np.testing.assert_array_equal(found[1:], expected[1:])
    assert found[0] == 0x7FFF
    np.testing.assert_array_equal(ptx("cvt.f32.bf16 %d, %a;", "f32", expected[1:], codes=["bf16"]),
                                  expected[1:].view(ml_dtypes.bfloat16).astype(np.float32))  # fmt: skip
    pair = ptx("cvt.rn.bf16x2.f32 %d, %a, %b;", "b32", a, b)
    np.testing.assert_array_equal(pair[1:] >> 16, expected[1:])
    np.testing.assert_array_equal(pair & 0xFFFF, b.astype(ml_dtypes.bfloat16).view(np.uint16))
    with np.errstate(over="ignore"):
        halves = b.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(ptx("cvt.rn.f16x2.f32 %d, %a, %b;", "b32", a, b) & 0xFFFF, halves)


def test_tf32(ptx):
    a = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    found = ptx("cvt.rna.tf32.f32 %d, %a;", "b32", a).view(np.float32)
    assert not (found.view(np.uint32) & 0x1FFF).any()
    np.testing.assert_allclose(found, a, rtol=2.0**-11)


@pytest.mark.parametrize("code", ["s32", "u32", "s64", "f32", "f64", "f16"])
def test_comparisons(ptx, code):
    dtype = {**INTEGERS, **FLOATS}[code]
    a, b = np.meshgrid([0, 1, 3, 100], [0, 1, 3, 100])
    a, b = a.ravel().astype(dtype), b.ravel().astype(dtype)
    if code[0] == "f":
        a[3] = b[7] = a[9] = b[9] = np.nan
    table = {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    for name, function in table.items():
        np.testing.assert_array_equal(ptx(f"setp.{name}.{code} %d, %a, %b;", "pred", a, b), function(a, b))
    nan = np.isnan(a.astype(float)) | np.isnan(b.astype(float))
    np.testing.assert_array_equal(ptx(f"setp.ne.{code} %d, %a, %b;", "pred", a, b), (a != b) & ~nan)
    if code[0] == "f":
        for name, function in (*table.items(), ("ne", np.not_equal)):
            found = ptx(f"setp.{name}u.{code} %d, %a, %b;", "pred", a, b)
            np.testing.assert_array_equal(found, function(a, b) | nan)
        np.testing.assert_array_equal(ptx(f"setp.num.{code} %d, %a, %b;", "pred", a, b), ~nan)
        np.testing.assert_array_equal(ptx(f"setp.nan.{code} %d, %a, %b;", "pred", a, b), nan)


def test_unsigned_names_and_the_second_predicate(ptx):
    a, b = np.array([1, 2, 3], np.uint32), np.array([2, 2, 2], np.uint32)
    for name, function in {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}.items():
        np.testing.assert_array_equal(ptx(f"setp.{name}.u32 %d, %a, %b;", "pred", a, b), function(a, b))
    yes, no = ptx("setp.lt.u32 %d|%e, %a, %b;", ["pred", "pred"], a, b)
    np.testing.assert_array_equal(yes, ~no)
    body = "setp.eq.u32 %p0, %a, 3; setp.lt.or.u32 %d, %a, %b, %p0;"
    np.testing.assert_array_equal(ptx(body, "pred", a, b), [True, False, True])
    body = "setp.eq.u32 %p0, %a, 1; setp.le.and.u32 %d, %a, %b, !%p0;"
    np.testing.assert_array_equal(ptx(body, "pred", a, b), [False, True, False])


def test_set_gives_numbers(ptx):
    a, b = np.array([1, 2, 3], np.float32), np.array([2, 2, 2], np.float32)
    np.testing.assert_array_equal(ptx("set.lt.u32.f32 %d, %a, %b;", "u32", a, b), [0xFFFFFFFF, 0, 0])
    np.testing.assert_array_equal(ptx("set.lt.f32.f32 %d, %a, %b;", "f32", a, b), [1.0, 0, 0])


def test_selections_keep_bits(ptx):
    a, b = np.array([np.nan, -0.0, 1, 2], np.float32), np.array([5, 6, 7, 8], np.float32)
    found = ptx("setp.gt.f32 %p0, %b, 0f40D00000; selp.f32 %d, %b, %a, %p0;", "f32", a, b)
    np.testing.assert_array_equal(found, [np.nan, -0.0, 7, 8])
    c = np.array([-1, 0, 1, -5], np.int32)
    np.testing.assert_array_equal(ptx("slct.f32.s32 %d, %a, %b, %c;", "f32", a, b, c), [5, -0.0, 1, 8])


def test_moves_between_registers_and_pairs(ptx):
    a = np.random.default_rng(1).integers(0, 2**32, 50, dtype=np.uint32)
    swapped = ptx("mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};", "u32", a)
    np.testing.assert_array_equal(swapped, a << 16 | a >> 16)
    wide = ptx("mov.b64 %d, {%a, %b};", "u64", a, a[::-1].copy())
    np.testing.assert_array_equal(wide, a.astype(np.uint64) | a[::-1].astype(np.uint64) << np.uint64(32))
    np.testing.assert_array_equal(ptx("mov.f32 %d, 0f40490FDB;", "f32", a), np.full(50, np.float32(np.pi)))
    np.testing.assert_array_equal(ptx("mov.b32 %d, -2;", "s32", a), np.full(50, -2))


def test_predicates_as_values(ptx):
    a = np.arange(4, dtype=np.int32)
    body = "mov.pred %p0, -1; setp.gt.s32 %p1, %a, 1; and.pred %p2, %p0, %p1; not.pred %p3, %p2; xor.pred %d, %p3, %p0;"
    np.testing.assert_array_equal(ptx(body, "pred", a), a > 1)


def test_predicated_instructions_leave_the_others_alone(ptx):
    a = np.arange(40, dtype=np.int32)
    body = "setp.lt.s32 %p0, %a, 10; mov.u32 %d, 7; @%p0 mov.u32 %d, 3; @!%p0 add.s32 %d, %d, %a;"
    np.testing.assert_array_equal(ptx(body, "s32", a), np.where(a < 10, 3, 7 + a))


def test_unknown_instructions_are_errors(ptx):
    from gpulayers.emulator.errors import UnknownInstruction

    a = np.arange(4, dtype=np.int32)
    for body in ("bogus.s32 %d, %a;", "add.rn.s32 %d, %a, %a;", "add.s32 %d, %a, %missing;", "cvt.s32.f32 %d, %a;"):
        with pytest.raises(UnknownInstruction, match=body.split()[0].replace(".", r"\.")):
            ptx(body, "s32", a)
