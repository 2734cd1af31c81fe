import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.ops.swap_time import swap_time

SHAPES = [(1, 1, 1), (3, 5, 7), (2, 4, 8), (5, 2, 129), (0, 3, 4), (3, 0, 4), (40, 7, 3)]


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(device, storage, shape, rng):
    x = rng.normal(size=shape).astype(np.float32)
    lengths = rng.integers(0, shape[1] + 1, shape[0]).astype(np.int32)
    for given in (None, lengths, np.zeros_like(lengths)):
        check_kernel(swap_time, device, x, given, storage=storage)
        check_kernel(swap_time, device, np.ascontiguousarray(x.swapaxes(0, 1)), given, False, storage=storage)


@on_devices
def test_views(device, rng):
    x, lengths = rng.normal(size=(4, 5, 16)).astype(np.float32), np.array([5, 0, 2, 1], np.int32)
    for view in (x[:, :, 8:], x[:, :, 3:10], x[:, ::2], x[:, :, ::2], x.swapaxes(0, 1)[:4]):
        check_kernel(swap_time, device, view, lengths)


@on_devices
def test_padding_hides_nan(device, rng):
    x, lengths = np.full((2, 3, 4), np.nan, np.float32), np.array([0, 2], np.int32)
    x[1, :2] = 1
    y = check_kernel(swap_time, device, x, lengths)[0]
    assert np.isfinite(y.get()).all()


@on_devices
def test_refusals(device):
    x, lengths = (gl.to_device(a, device) for a in (np.zeros((2, 3, 4), np.float32), np.zeros(3, np.int32)))
    with pytest.raises(ValueError, match=r"swap_time: lengths must have shape \(2,\), got \(3,\)"):
        swap_time(x, lengths)
    with pytest.raises(TypeError, match="swap_time: lengths must be int32, got an array of int64"):
        swap_time(x, lengths[:2].astype(np.int64))


@pytest.mark.parametrize("batch_first", [True, False])
def test_h11_beyond_32_bits(batch_first, monkeypatch):
    """cupy #7539. Only the last block of the grid runs: the last 2048 elements."""
    rows, cols = 2, (1 << 30) + 2048
    x = gl.use("emulated").zeros((1, rows, cols), np.float16)
    x[0, -1, -2048:] = gl.use("emulated").arange(2048)
    x = x if batch_first else x.swapaxes(0, 1)
    only_block(monkeypatch, rows * cols // 2048 - 1)
    y = swap_time(x, None, batch_first)
    assert np.array_equal(y.reshape(-1)[-2048:].get(), np.arange(2048))
