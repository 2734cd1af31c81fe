"""Real CUDA C++ through NVRTC: calls, switches, local arrays, mathematics, atomics, halves, on two architectures."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpulayers.emulator import cupy as cp
from gpulayers.emulator.errors import DeviceAssert
from gpulayers.emulator.settings import using

KERNELS = Path(__file__).parent / "kernels"
HALVES = (
    "through_float<__half>", "through_float<__nv_bfloat16>", "native<__half>", "native<__nv_bfloat16>",
    "pairs<__half2>", "pairs<__nv_bfloat162>",
)  # fmt: skip
GRID, BLOCK = (4,), (128,)
N = 500
pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture(scope="module", params=["compute_75", "compute_90"])
def arch(request):
    with using(arch=request.param):
        yield request.param


@pytest.fixture(scope="module")
def language(arch):
    return cp.RawModule(code=(KERNELS / "language.cu").read_text())


@pytest.fixture(scope="module")
def atomics(arch):
    return cp.RawModule(code=(KERNELS / "atomics.cu").read_text())


@pytest.fixture(scope="module")
def halves():
    with using(arch="compute_90"):
        yield cp.RawModule(code=(KERNELS / "halves.cu").read_text(), name_expressions=HALVES)


def test_calls_with_pointers_to_locals_and_a_struct_by_value(language, rng):
    x, out = rng.standard_normal(N).astype(np.float32), cp.empty(2 * N, cp.float32)
    affine = np.array((2.0, 0.5, 3), dtype=[("scale", "f4"), ("shift", "f4"), ("kind", "i4")])
    language.get_function("calls")(GRID, BLOCK, (out, cp.asarray(x), affine, np.int32(N)))
    i = np.arange(N)
    a, b = x.astype(np.float64) ** (i % 5), 2 * x + 0.5
    expected = np.where(i % 2 == 1, [b, a], [a, b])
    np.testing.assert_allclose(out.get().reshape(N, 2).T, expected, rtol=1e-6)


def test_switch(language, rng):
    x, out, i = rng.integers(0, 8, N).astype(np.int32), cp.empty(N, cp.int32), np.arange(N)
    language.get_function("switches")(GRID, BLOCK, (out, cp.asarray(x), np.int32(N)))
    zeros = [32 - int(k).bit_length() for k in i]
    primes, table = np.array([2, 3, 5, 7, 11, 13])[i % 6], np.array([1, 10, 100, 1000])[i & 3]
    cases = [5 * i, i - 7, i ^ 0x55, primes, table, np.bitwise_count(i), zeros, np.full(N, -1)]
    np.testing.assert_array_equal(out.get(), np.choose(x, cases))


def test_local_arrays(language, rng):
    x, out = rng.integers(0, 1000, N).astype(np.int32), cp.empty(N, cp.int32)
    language.get_function("local_array")(GRID, BLOCK, (out, cp.asarray(x), np.int32(N)))
    expected = [np.sort(np.take(x, range(i, i + 16), mode="wrap"))[x[i] & 15] for i in range(N)]
    np.testing.assert_array_equal(out.get(), expected)


def test_module_variables_keep_their_values(arch):
    kernel = cp.RawModule(code=(KERNELS / "language.cu").read_text()).get_function("module_variable")
    out = cp.empty(4, cp.int32)
    for start in (41, 45):
        kernel((4,), (32,), (out,))
        np.testing.assert_array_equal(np.sort(out.get()), start + np.arange(4))


def test_module_variables_can_be_reached_from_python(arch):
    module = cp.RawModule(code=(KERNELS / "language.cu").read_text())
    variable = cp.ndarray(1, cp.int32, module.get_global("counter_value"))
    assert variable.item() == 41
    variable[0] = 7
    out = cp.empty(1, cp.int32)
    module.get_function("module_variable")((1,), (32,), (out,))
    assert (out.item(), variable.item()) == (7, 8)


def test_loops_that_threads_leave_one_by_one(language):
    out = cp.empty(N, cp.int32)
    language.get_function("collatz")(GRID, BLOCK, (out, np.int32(N), np.int32(100)))

    def steps(x: int) -> int:
        count = 0
        while x != 1 and count <= 100:
            count, x = count + 1, x // 2 if x % 2 == 0 else 3 * x + 1
        return count if count <= 100 else -1

    assert out.get().tolist() == [steps(i + 1) for i in range(N)]


def test_generic_pointers(language):
    i, out, source = np.arange(64), cp.empty(64, cp.float32), cp.arange(64, dtype=cp.float32)
    language.get_function("generic")((1,), (64,), (out, source))
    expected = np.choose(i % 3, [100.0 + i, i, np.where(i & 1, -2.0, -1.0)]) + 0.5
    np.testing.assert_array_equal(out.get(), expected)


def test_mathematics_in_double_and_float(language, rng):
    x = rng.standard_normal(N)
    out = cp.empty(N)
    language.get_function("doubles")(GRID, BLOCK, (out, cp.asarray(x), np.int32(N)))
    expected = [
        math.exp(v) + math.log1p(abs(v)) + math.sqrt(abs(v)) + math.erf(v) + abs(v) ** 1.5 + math.sin(v) for v in x
    ]
    np.testing.assert_allclose(out.get(), expected, rtol=0, atol=2e-14)
    x = x.astype(np.float32).astype(np.float64)
    out = cp.empty(N, cp.float32)
    language.get_function("floats")(GRID, BLOCK, (out, cp.asarray(x, np.float32), np.int32(N)))
    third = float(np.float32(0.3))
    expected = [
        math.exp(v) + math.log1p(abs(v)) + math.erf(v) + math.tanh(v) + abs(v) ** 1.5 + math.sin(100 * v)
        + math.copysign(math.floor(abs(v) + 0.5), v) + math.fmod(v, third) + v / 3 + math.cbrt(v)
        for v in x
    ]  # fmt: skip
    np.testing.assert_allclose(out.get(), expected, rtol=0, atol=5e-5)


def test_trap_names_the_thread(language):
    with pytest.raises(DeviceAssert, match=r"checked: block \(2, 0, 0\) thread \(5, 0, 0\)"):
        language.get_function("checked")((4,), (64,), (cp.empty(256, cp.int32), np.int32(2)))


def test_printf_and_assert(language, capsys):
    kernel = language.get_function("speak")
    kernel((2,), (4,), (cp.asarray(np.float32([0.5, 1.25, 2, 3])), np.int32(2)))
    lines = [f"block {b} thread   {i}: {x:.3f} end -14 ff 100%" for b in (0, 1) for i, x in ((0, 0.5), (1, 1.25))]
    assert sorted(capsys.readouterr().out.splitlines()) == lines
    with pytest.raises(DeviceAssert, match=r"thread \(3, 0, 0\): assert\(x\[i\] < 5.0f\) failed"):
        kernel((1,), (4,), (cp.asarray(np.float32([0, 1, 2, 6])), np.int32(0)))


def test_atomic_reductions(atomics, rng):
    x = rng.integers(-1000, 1000, N).astype(np.int32)
    ends, wide = cp.asarray(np.array([0, -9999, 9999], np.int32)), cp.zeros(2, cp.uint64)
    words = cp.asarray(np.array([0xFFFFFFFF, 0, 0, 0], np.uint32))
    sums, exact = cp.zeros(7, cp.float32), cp.zeros(3)
    atomics.get_function("reduce_all")(GRID, BLOCK, (cp.asarray(x), ends, words, wide, sums, exact, np.int32(N)))
    assert ends.tolist() == [x.sum(), x.max(), x.min()]
    bits = x.view(np.uint32)
    both = [np.bitwise_and.reduce(bits | 0xF0F0F0F0), np.bitwise_or.reduce(bits & 0x0F0F0F0F)]
    assert words.tolist() == [*both, np.bitwise_xor.reduce(bits), N]
    assert wide.tolist() == [int(x.sum()) % 2**64, bits.max()]
    for array, count in ((sums, 7), (exact, 3)):
        np.testing.assert_array_equal(array.get(), np.bincount(np.arange(N) % count, x, count))


def test_atomics_return_what_was_there(atomics, rng):
    counter, ticket = cp.zeros(1, cp.int32), cp.empty(N, cp.int32)
    atomics.get_function("tickets")(GRID, BLOCK, (counter, ticket, np.int32(N)))
    np.testing.assert_array_equal(np.sort(ticket.get()), np.arange(N))
    x, out = rng.standard_normal(N).astype(np.float32), cp.full(1, -100, cp.float32)
    atomics.get_function("float_max")(GRID, BLOCK, (cp.asarray(x), out, np.int32(N)))
    assert out.item() == x.max()


def test_atomics_in_shared_memory(atomics, rng):
    x, bins = rng.integers(0, 256, 5000).astype(np.uint8), cp.zeros(256, cp.uint32)
    atomics.get_function("histogram")(GRID, BLOCK, (cp.asarray(x), bins, np.int32(len(x))))
    np.testing.assert_array_equal(bins.get(), np.bincount(x, minlength=256))


def test_atomic_pairs_of_halves(atomics):
    out = cp.zeros(4, cp.float16)
    atomics.get_function("half_sums")((1,), (32,), (out, cp.ones(40, cp.float16), np.int32(20)))
    assert out.tolist() == [10.0] * 4


@pytest.mark.parametrize(("name", "dtype"), [("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)])
def test_halves(halves, rng, name, dtype):
    a, b = (rng.standard_normal(N).astype(dtype) for _ in range(2))
    y, pair = cp.empty(N, dtype), "__half2" if name == "__half" else "__nv_bfloat162"

    def rounded(x):
        return np.asarray(x, dtype).astype(np.float64)

    halves.get_function(f"through_float<{name}>")(GRID, BLOCK, (y, cp.asarray(a), np.int32(N)))
    np.testing.assert_array_equal(y.get(), (a.astype(np.float32) * 1.5 + 0.25).astype(dtype))
    halves.get_function(f"native<{name}>")(GRID, BLOCK, (y, cp.asarray(a), cp.asarray(b), np.int32(N)))
    wide = rounded(a), rounded(b)
    expected = rounded(wide[0] * wide[1] + rounded(wide[0] - rounded(wide[1] ** 2)))
    np.testing.assert_array_equal(y.get().astype(np.float64), expected)
    halves.get_function(f"pairs<{pair}>")(GRID, BLOCK, (y, cp.asarray(a), cp.asarray(b), np.int32(N // 2)))
    expected = np.maximum(rounded(wide[0] + wide[1]), rounded(wide[0] * wide[1] + wide[0]))
    np.testing.assert_array_equal(y.get().astype(np.float64), expected)


def test_half_functions_comparisons_and_vectors(halves, rng):
    a, b = (rng.uniform(0.5, 3, N).astype(np.float16) for _ in range(2))
    y, x = cp.empty(N, cp.float16), a.astype(np.float64)
    halves.get_function("functions")(GRID, BLOCK, (y, cp.asarray(a), np.int32(N)))
    np.testing.assert_allclose(y.get(), np.exp(x) + np.sqrt(x) + 1 / x + np.trunc(x), rtol=4e-3)
    found = cp.empty(N // 2, cp.int32)
    halves.get_function("comparisons")(GRID, BLOCK, (found, cp.asarray(a), cp.asarray(b), np.int32(N // 2)))
    both = (a > b).reshape(-1, 2).all(1)
    np.testing.assert_array_equal(found.get(), (a[::2] < b[::2]) + 2 * (a[1::2] >= b[1::2]) + 4 * both)
    v = cp.asarray(a[: N // 8 * 8])
    y = cp.empty_like(v)
    halves.get_function("vectors")(GRID, BLOCK, (y, v, np.int32(N // 8)))
    np.testing.assert_array_equal(y.get().reshape(-1, 2), v.get().reshape(-1, 2) * np.array([2, -1], np.float16))


def test_bfloat16_storage_on_the_oldest_architecture(rng):
    with using(arch="compute_75"):
        source = (KERNELS / "halves.cu").read_text().split("template <typename T> __global__ void native")[0]
        kernel = cp.RawModule(code=source, name_expressions=(HALVES[1],)).get_function(HALVES[1])
        a, y = rng.standard_normal(N).astype(ml_dtypes.bfloat16), cp.empty(N, ml_dtypes.bfloat16)
        a[:3] = np.nan, np.inf, 3e38
        kernel(GRID, BLOCK, (y, cp.asarray(a), np.int32(N)))
    with np.errstate(over="ignore"):
        expected = (a.astype(np.float32) * 1.5 + 0.25).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y.get().astype(np.float32), expected.astype(np.float32))
