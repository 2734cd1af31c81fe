"""Integer instructions against NumPy and Python's unbounded integers."""

import numpy as np
import pytest

TYPES = {"s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64}


def numbers(code: str, seed: int, size: int = 200) -> np.ndarray:
    """Random values of all magnitudes and the extremes."""
    limits, rng = np.iinfo(TYPES[code]), np.random.default_rng(seed)
    values = rng.integers(limits.min, limits.max, size, dtype=TYPES[code], endpoint=True)
    values >>= rng.integers(0, limits.bits, size).astype(TYPES[code])
    values[:6] = [0, 1, limits.min, limits.max, limits.max, limits.min]
    return values


def exact(function, code: str, *arrays: np.ndarray) -> np.ndarray:
    """The function on Python integers, wrapped to the type."""
    bits = np.iinfo(TYPES[code]).bits
    words = [function(*(int(one) for one in row)) & ((1 << bits) - 1) for row in zip(*arrays, strict=True)]
    return np.array(words, np.uint64).astype(f"u{bits // 8}").view(TYPES[code])


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("code", TYPES)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(ptx, name, code):
    a, b = numbers(code, 1), numbers(code, 2)
    np.testing.assert_array_equal(ptx(f"{name}.{code} %d, %a, %b;", code, a, b), exact(ARITHMETIC[name], code, a, b))


@pytest.mark.parametrize("code", TYPES)
def test_mul_hi_and_mad(ptx, code):
    a, b, c = (numbers(code, seed) for seed in (1, 2, 3))
    bits = np.iinfo(TYPES[code]).bits
    np.testing.assert_array_equal(
        ptx(f"mul.hi.{code} %d, %a, %b;", code, a, b), exact(lambda x, y: x * y >> bits, code, a, b)
    )
    np.testing.assert_array_equal(
        ptx(f"mad.lo.{code} %d, %a, %b, %c;", code, a, b, c), exact(lambda x, y, z: x * y + z, code, a, b, c)
    )
    np.testing.assert_array_equal(
        ptx(f"mad.hi.{code} %d, %a, %b, %c;", code, a, b, c), exact(lambda x, y, z: (x * y >> bits) + z, code, a, b, c)
    )


@pytest.mark.parametrize(("code", "wide"), [("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")])
def test_wide_products(ptx, code, wide):
    a, b, c = numbers(code, 1), numbers(code, 2), numbers(wide, 3)
    np.testing.assert_array_equal(
        ptx(f"mul.wide.{code} %d, %a, %b;", wide, a, b), exact(lambda x, y: x * y, wide, a, b)
    )
    np.testing.assert_array_equal(
        ptx(f"mad.wide.{code} %d, %a, %b, %c;", wide, a, b, c), exact(lambda x, y, z: x * y + z, wide, a, b, c)
    )


@pytest.mark.parametrize("code", TYPES)
def test_division_truncates_and_the_remainder_has_the_sign_of_the_dividend(ptx, code):
    a, b = numbers(code, 1), numbers(code, 2)
    b[b == 0] = 3
    np.testing.assert_array_equal(ptx(f"div.{code} %d, %a, %b;", code, a, b), exact(truncated, code, a, b))
    np.testing.assert_array_equal(
        ptx(f"rem.{code} %d, %a, %b;", code, a, b), exact(lambda x, y: x - truncated(x, y) * y, code, a, b)
    )


def test_division_by_zero_gives_all_ones(ptx):
    a = np.array([0, 5, -5], np.int32)
    assert (ptx("div.s32 %d, %a, %b;", "s32", a, np.zeros(3, np.int32)) == -1).all()


def test_saturating_addition(ptx):
    a, b = numbers("s32", 1), numbers("s32", 2)
    expected = np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(ptx("add.sat.s32 %d, %a, %b;", "s32", a, b), expected)


@pytest.mark.parametrize("code", ["s32", "s64", "s16"])
def test_neg_and_abs(ptx, code):
    a = numbers(code, 1)
    np.testing.assert_array_equal(ptx(f"neg.{code} %d, %a;", code, a), exact(lambda x: -x, code, a))
    np.testing.assert_array_equal(ptx(f"abs.{code} %d, %a;", code, a), exact(abs, code, a))


@pytest.mark.parametrize("code", ["u16", "u32", "u64"])
def test_bitwise(ptx, code):
    a, b = numbers(code, 1), numbers(code, 2)
    bits = code.replace("u", "b")
    for name, function in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        np.testing.assert_array_equal(ptx(f"{name}.{bits} %d, %a, %b;", code, a, b), function(a, b))
    np.testing.assert_array_equal(ptx(f"not.{bits} %d, %a;", code, a), ~a)
    np.testing.assert_array_equal(ptx(f"cnot.{bits} %d, %a;", code, a), (a == 0).astype(a.dtype))


@pytest.mark.parametrize("code", TYPES)
def test_shifts_beyond_the_width(ptx, code):
    a, width = numbers(code, 1), np.iinfo(TYPES[code]).bits
    count = np.arange(len(a), dtype=np.uint32) % (width + 5)
    count[-1] = 0xFFFFFFFF
    bits = f"b{width}"
    np.testing.assert_array_equal(
        ptx(f"shl.{bits} %d, %a, %b;", code, a, count), exact(lambda x, n: x << n if n < width else 0, code, a, count)
    )
    np.testing.assert_array_equal(
        ptx(f"shr.{code} %d, %a, %b;", code, a, count), exact(lambda x, n: x >> min(n, width), code, a, count)
    )


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@pytest.mark.parametrize("side", ["l", "r"])
def test_funnel_shift(ptx, side, mode):
    a, b = numbers("u32", 1), numbers("u32", 2)
    count = np.arange(len(a), dtype=np.uint32) % 40

    def funnel(low: int, high: int, n: int) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        pair = high << 32 | low
        return pair << n >> 32 if side == "l" else pair >> n

    found = ptx(f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", "u32", a, b, count)
    np.testing.assert_array_equal(found, exact(funnel, "u32", a, b, count))


@pytest.mark.parametrize("code", ["u32", "u64"])
def test_counts(ptx, code):
    a, width = numbers(code, 1), np.iinfo(TYPES[code]).bits
    bits = code.replace("u", "b")
    np.testing.assert_array_equal(ptx(f"popc.{bits} %d, %a;", "u32", a), exact(int.bit_count, "u32", a))
    np.testing.assert_array_equal(
        ptx(f"clz.{bits} %d, %a;", "u32", a), exact(lambda x: width - x.bit_length(), "u32", a)
    )
    np.testing.assert_array_equal(
        ptx(f"brev.{bits} %d, %a;", code, a), exact(lambda x: int(f"{x:0{width}b}"[::-1], 2), code, a)
    )


@pytest.mark.parametrize("code", ["u32", "s32", "u64", "s64"])
def test_find_highest_bit(ptx, code):
    a, width = numbers(code, 1), np.iinfo(TYPES[code]).bits

    def find(x: int) -> int:
        return (x if x >= 0 else ~x).bit_length() - 1

    np.testing.assert_array_equal(ptx(f"bfind.{code} %d, %a;", "u32", a), exact(find, "u32", a))
    np.testing.assert_array_equal(
        ptx(f"bfind.shiftamt.{code} %d, %a;", "u32", a),
        exact(lambda x: width - 1 - find(x) if find(x) >= 0 else -1, "u32", a),
    )


@pytest.mark.parametrize("code", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(ptx, code):
    """The manual's loop, bit by bit."""
    a, width = numbers(code, 1), np.iinfo(TYPES[code]).bits
    rng = np.random.default_rng(3)
    start = rng.integers(0, width + 10, len(a)).astype(np.uint32)
    length = rng.integers(0, width + 10, len(a)).astype(np.uint32)

    def extract(x: int, pos: int, n: int) -> int:
        top = width - 1
        sign = 0 if code[0] == "u" or n == 0 else x >> min(pos + n - 1, top) & 1
        return sum((x >> pos + i & 1 if i < n and pos + i <= top else sign) << i for i in range(width))

    found = ptx(f"bfe.{code} %d, %a, %b, %c;", code, a, start, length)
    np.testing.assert_array_equal(found, exact(extract, code, a, start, length))


@pytest.mark.parametrize("code", ["u32", "u64"])
def test_bit_field_insert(ptx, code):
    a, width = numbers(code, 1), np.iinfo(TYPES[code]).bits
    place = np.random.default_rng(4).integers(0, width + 5, len(a)).astype(np.uint32)
    for length in (0, 1, 7, width, width + 3):

        def insert(x: int, pos: int, length: int = length) -> int:
            base, result = 0x5A5A5A5A5A5A5A5A & ((1 << width) - 1), 0x5A5A5A5A5A5A5A5A & ((1 << width) - 1)
            for i in range(min(length, width)):
                if pos + i < width:
                    result = result & ~(1 << pos + i) | (x >> i & 1) << pos + i
            return result if length else base

        base = 0x5A5A5A5A5A5A5A5A & ((1 << width) - 1)
        found = ptx(f"bfi.b{width} %d, %a, {base:#x}, %b, {length};", code, a, place)
        np.testing.assert_array_equal(found, exact(insert, code, a, place))


@pytest.mark.parametrize("table", [0x96, 0xE8, 0xCA, 0x1D])
def test_any_function_of_three_bits(ptx, table):
    a, b, c = (numbers("u32", seed) for seed in (1, 2, 3))

    def logic(x: int, y: int, z: int) -> int:
        return sum((table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | z >> i & 1) & 1) << i for i in range(32))

    np.testing.assert_array_equal(
        ptx(f"lop3.b32 %d, %a, %b, %c, {table:#x};", "u32", a, b, c), exact(logic, "u32", a, b, c)
    )


def test_byte_permutation(ptx):
    a, b, c = (numbers("u32", seed) for seed in (1, 2, 3))

    def permute(x: int, y: int, selector: int) -> int:
        source, result = (y << 32 | x).to_bytes(8, "little"), 0
        for k in range(4):
            choice = selector >> 4 * k & 15
            byte = source[choice & 7]
            result |= (0xFF * (byte >> 7) if choice & 8 else byte) << 8 * k
        return result

    np.testing.assert_array_equal(ptx("prmt.b32 %d, %a, %b, %c;", "u32", a, b, c), exact(permute, "u32", a, b, c))


def test_sad_mul24_and_dp4a(ptx):
    a, b, c = (numbers("s32", seed) for seed in (1, 2, 3))
    np.testing.assert_array_equal(
        ptx("sad.s32 %d, %a, %b, %c;", "s32", a, b, c), exact(lambda x, y, z: z + abs(x - y), "s32", a, b, c)
    )

    def low24(x: int) -> int:
        return (x & 0xFFFFFF) - ((x & 0x800000) << 1)

    np.testing.assert_array_equal(
        ptx("mul24.lo.s32 %d, %a, %b;", "s32", a, b), exact(lambda x, y: low24(x) * low24(y), "s32", a, b)
    )

    def dot(x: int, y: int, z: int) -> int:
        pairs = zip((x & 0xFFFFFFFF).to_bytes(4, "little"), (y & 0xFFFFFFFF).to_bytes(4, "little"), strict=True)
        return z + sum(((p ^ 128) - 128) * ((q ^ 128) - 128) for p, q in pairs)

    np.testing.assert_array_equal(ptx("dp4a.s32.s32 %d, %a, %b, %c;", "s32", a, b, c), exact(dot, "s32", a, b, c))
