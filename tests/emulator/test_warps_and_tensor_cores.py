"""Exchange between lanes, barriers, and tensor cores, against NumPy."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpulayers.emulator import cupy as cp
from gpulayers.emulator.settings import using

KERNELS = Path(__file__).parent / "kernels"
pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture(scope="module", params=["compute_75", "compute_90"])
def warps(request):
    with using(arch=request.param):
        yield cp.RawModule(code=(KERNELS / "warps.cu").read_text())


@pytest.fixture(scope="module")
def tensor():
    with using(arch="compute_90"):
        yield cp.RawModule(code=(KERNELS / "tensor.cu").read_text())


def test_shuffles_and_votes(warps, rng):
    n = 128
    x = rng.integers(-1000, 1000, n).astype(np.int32)
    out = cp.full((11, n), -1, cp.int32)
    warps.get_function("exchange")((1,), (n,), (out, cp.asarray(x), np.int32(n)))
    lane = np.arange(32)
    rows = x.reshape(-1, 32)

    def pick(source: np.ndarray) -> np.ndarray:
        return rows[:, source].ravel()

    def votes(yes: np.ndarray) -> np.ndarray:
        return np.repeat((yes.reshape(-1, 32) * (1 << lane.astype(np.int64))).sum(1), 32)

    segment = lane // 16 * 16
    expected = [
        pick((lane * 7 + 3) % 32),
        pick(np.where(lane >= 5, lane - 5, lane)),
        pick(np.where(lane + 9 < 32, lane + 9, lane)),
        pick(lane ^ 13),
        pick(lane // 8 * 8 + (lane + 3) % 8),
        pick(np.where(lane - 3 >= segment, lane - 3, lane)),
        pick(np.where(lane + 3 < segment + 16, lane + 3, lane)),
        votes(x > 0),
        np.repeat((rows > 900).any(1), 32),
        np.repeat((rows > -990).all(1), 32),
        np.full(n, 0xFFFFFFFF),
    ]
    for found, wanted in zip(out.get(), expected, strict=True):
        np.testing.assert_array_equal(found.view(np.uint32), np.asarray(wanted).astype(np.uint32))


def test_halves_of_a_warp_on_their_own(warps, rng):
    x = rng.integers(-1000, 1000, 64).astype(np.int32)
    out = cp.empty(64, cp.int32)
    warps.get_function("half_warp")((1,), (64,), (out, cp.asarray(x)))
    parts = x.reshape(2, 2, 16)
    np.testing.assert_array_equal(out.get().reshape(2, 2, 16)[:, 0], np.repeat(parts[:, 0].sum(1)[:, None], 16, 1))
    np.testing.assert_array_equal(out.get().reshape(2, 2, 16)[:, 1], np.repeat(parts[:, 1].max(1)[:, None], 16, 1))


def test_lanes_wait_for_each_other_at_a_vote(warps, rng):
    x = rng.integers(0, 200, 64).astype(np.int32)
    out = cp.empty(64, cp.int32)
    warps.get_function("late")((1,), (64,), (out, cp.asarray(x)))
    odd = (-(-x // 3) & 1).reshape(2, 32)
    expected = (odd.astype(np.int64) << np.arange(32)).sum(1)
    np.testing.assert_array_equal(out.get().view(np.uint32).reshape(2, 32)[:, 0], expected)


def test_warp_reductions_and_matches(rng):
    with using(arch="compute_90"):
        kernel = cp.RawModule(code=(KERNELS / "warps.cu").read_text()).get_function("reductions")
    n = 64
    x, out = rng.integers(0, 2**32, n, dtype=np.uint32), cp.empty((6, n), cp.uint32)
    kernel((1,), (n,), (out, cp.asarray(x), np.int32(n)))
    rows, found = x.reshape(2, 32), out.get().reshape(6, 2, 32)
    for row, function in enumerate((np.add, np.minimum, np.maximum, np.bitwise_xor)):
        np.testing.assert_array_equal(found[row], np.repeat(function.reduce(rows, 1, dtype=np.uint32)[:, None], 32, 1))
    same = (rows[:, :, None] & 3) == (rows[:, None, :] & 3)
    np.testing.assert_array_equal(found[4], (same * (1 << np.arange(32, dtype=np.int64))).sum(2))
    np.testing.assert_array_equal(found[5], np.zeros((2, 32)))  # 0xffffffff + 1


def test_votes_of_the_block(warps, rng):
    x = rng.integers(-1000, 1000, (3, 96)).astype(np.int32)
    x[0], x[1, 5] = np.clip(x[0], -900, 900), 960
    out = cp.empty((3, 3), cp.int32)
    warps.get_function("block_votes")((3,), (96,), (out, cp.asarray(x)))
    np.testing.assert_array_equal(out.get().T, [(x > 0).sum(1), (x > 950).any(1), (x > -950).all(1)])


def test_syncwarp_orders_shared_memory_within_a_warp(warps, rng):
    x = rng.integers(-1000, 1000, 128).astype(np.int32)
    out = cp.empty(128, cp.int32)
    warps.get_function("warp_scan")((1,), (128,), (out, cp.asarray(x)))
    np.testing.assert_array_equal(out.get(), x.reshape(4, 32).cumsum(1).ravel())


def test_named_barriers(warps, rng):
    x = rng.integers(-1000, 1000, 128).astype(np.int32)
    out, i = cp.empty(128, cp.int32), np.arange(128)
    warps.get_function("named_barriers")((1,), (128,), (out, cp.asarray(x)))
    np.testing.assert_array_equal(out.get(), x[i // 64 * 64 + (i * 5 + 1) % 64])


@pytest.mark.parametrize(("name", "dtype"), [("product_half", np.float16), ("product_bfloat16", ml_dtypes.bfloat16)])
def test_products_of_halves(tensor, rng, name, dtype):
    a, b, c = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((8, 16)).astype(dtype), cp.empty((16, 8))
    c = cp.empty((16, 8), cp.float32)
    tensor.get_function(name)((1,), (32,), (c, cp.asarray(a), cp.asarray(b)))
    expected = a.astype(np.float64) @ b.astype(np.float64).T + 0.5
    np.testing.assert_array_equal(c.get(), expected.astype(np.float32))


def test_product_of_tf32(tensor, rng):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    c = cp.empty((16, 8), cp.float32)
    tensor.get_function("product_tf32")((1,), (32,), (c, cp.asarray(a), cp.asarray(b)))
    np.testing.assert_allclose(c.get(), a.astype(np.float64) @ b.T, rtol=0, atol=2e-2)
    assert not np.allclose(c.get(), a.astype(np.float64) @ b.T, rtol=0, atol=1e-6)  # tf32 keeps 10 bits


def test_asynchronous_copy_and_ldmatrix(tensor, rng):
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 8)).astype(np.float16)
    c = cp.empty((16, 8), cp.float32)
    tensor.get_function("product_ldmatrix")((1,), (32,), (c, cp.asarray(a), cp.asarray(b)))
    np.testing.assert_array_equal(c.get(), (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32))
