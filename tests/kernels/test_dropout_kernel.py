import ml_dtypes
import numpy as np
import pytest
from devices import STORAGE, check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.ops.dropout import dropout
from gpulayers.random import device_step, keep_threshold, random_bits
from gpulayers.step import Key

SHAPES = [(1, 1), (3, 5), (5, 8), (7, 33), (2, 1023), (4, 128)]


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first_sample", [0, 1, 3])
def test_the_same_bits_as_the_cpu(first_sample, shape, storage, device, rng):
    """Bit for bit numpy.random.Philox, wherever in a block of its words the first sample begins."""
    x = rng.normal(size=shape).astype(STORAGE[storage])
    for key in (Key(5, 6, 7, first_sample), Key(2**64 - 1, 2**40 - 1, 2**24 - 1, first_sample)):
        for p in (0.1, 0.5):
            y = dropout(gl.to_device(x, device), key, p).get()
            keep = random_bits(key, shape[1], shape[0]) >= keep_threshold(p)
            assert np.array_equal(y != 0, keep & (x != 0))
            assert np.array_equal(y, dropout.reference(x, key, p))


@on_devices
def test_against_the_reference(device, rng):
    x = rng.normal(size=(6, 301)).astype(np.float32)
    for p in (0.0, 0.3, 1 - 1e-12, 1.0):
        check_kernel(dropout, device, x, Key(1, 2, 3, 4), p)
    check_kernel(dropout, device, x.T, Key(1, 2, 3, 4), 0.3)  # H09 (cupy #9233)
    check_kernel(dropout, device, x[::2, 1:], Key(1, 2, 3, 4), 0.3)
    check_kernel(dropout, device, x[:0], Key(1, 2, 3, 4), 0.3)  # H13
    check_kernel(dropout, device, x[:, :0], Key(1, 2, 3, 4), 0.3)


@on_devices
def test_bits_on_the_threshold_are_kept(device):
    """threshold / 2^32 is p to the last bit: one element's bits are the threshold itself."""
    key, x = Key(1, 2, 3, 0), np.ones((1, 16), np.float32)
    bits = random_bits(key, 16, 1)
    for at in (0, 5, 15):
        p = int(bits[0, at]) / 2**32
        assert keep_threshold(p) == bits[0, at]
        assert np.array_equal(dropout(gl.to_device(x, device), key, p).get() != 0, bits >= bits[0, at])
        assert dropout(x, key, p)[0, at] != 0


@on_devices
@in_storage
def test_what_is_dropped_is_zero_whatever_it_was(storage, device):
    x = np.full((3, 50), np.nan).astype(STORAGE[storage])
    y = dropout(gl.to_device(x, device), Key(0, 0, 0, 0), 0.5).get().astype(np.float32)
    assert np.array_equal(np.isnan(y), random_bits(Key(0, 0, 0, 0), 50, 3) >= keep_threshold(0.5))
    assert set(y[~np.isnan(y)]) == {0}


@on_devices
def test_misaligned_memory(device, rng):
    x = gl.to_device(rng.normal(size=81).astype(ml_dtypes.bfloat16), device)[1:].reshape(2, 40)
    key = Key(3, 0, 0, 0)
    assert np.array_equal(dropout(x, key, 0.5).get(), dropout.reference(x.get(), key, 0.5))


@on_devices
def test_the_step_is_made_once(device):
    x = gl.to_device(np.ones((1, 1), np.float32), device)
    assert device_step(11, x) is device_step(11, x)
    assert device_step(12, x).get().tolist() == [12]
    assert device_step(11, x).get().tolist() == [11]


def test_too_many_draws_and_samples(rng):
    x = gl.to_device(np.ones((1, 1 << 16), np.float32), "emulated")
    with pytest.raises(ValueError, match=r"more than 2\^24 draws"):
        dropout(x, Key(0, 0, 1 << 24, 0), 0.5)
    with pytest.raises(OverflowError):
        dropout(x, Key(0, 0, 0, 1 << 47), 0.5)


def test_h11_beyond_32_bits(monkeypatch, rng):
    """cupy #7539: 2^31 + 5000 elements. Only the last block of the grid runs; its bits are those of its place."""
    cp, rows, cols = gl.use("emulated"), 2, (1 << 30) + 2500
    x = cp.zeros((rows, cols), np.float16)
    x[-1, -2000:] = 1
    only_block(monkeypatch, (rows * cols - 1) // (8 * 256))
    y = dropout(x, Key(1, 2, 3, 0), 0.5).reshape(-1)
    start = (rows * cols - 1) // 2048 * 2048
    generator = np.random.Philox(key=np.array([1, 2 << 24 | 3], np.uint64), counter=[start // 8, 0, 0, 0])
    bits = generator.random_raw(4 * 256).view(np.uint32)[: rows * cols - start]
    assert np.array_equal(y[start:].get(), np.where(bits >= 1 << 31, 2, 0))
    assert not y[start - 100 : start].get().any()
