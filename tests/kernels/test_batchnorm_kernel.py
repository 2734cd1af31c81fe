import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update

SHAPES = [(1, 1), (2, 5), (7, 8), (300, 3), (65, 33), (9, 128), (3, 129), (5, 1025)]


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(device, storage, shape, rng):
    x, dy = rng.normal(1, 2, (2, *shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32)
    check_kernel(batchnorm_statistics, device, x, storage=storage)
    mean, var = map(Exact, batchnorm_statistics.reference(x))
    check_kernel(batchnorm, device, x, mean, var, weight, bias, 1e-5, storage=storage)
    check_kernel(batchnorm, device, x, mean, var, None, None, 1e-5, storage=storage)
    terms = np.abs(dy * weight).max() / np.sqrt(var.array.min() + 1e-5)  # with two rows dx is nearly 0
    for fixed in (False, True):
        args = (dy, x, mean, var, weight, 1e-5, fixed)
        check_kernel(batchnorm_backward, device, *args, storage=storage, factor=3, scale=terms)
    check_kernel(batchnorm_backward, device, dy, x, mean, var, None, 1e-5, storage=storage, factor=3, scale=terms)


@on_devices
@pytest.mark.parametrize(("rows", "cols"), [(5000, 2), (300, 70)])
def test_several_blocks_down_a_column(device, rows, cols, rng, monkeypatch):
    monkeypatch.setattr("gpulayers.ops.batchnorm.ROWS", 2)
    x, dy = rng.normal(1, 2, (2, rows, cols)).astype(np.float32)
    with record_launches() as launches:
        mean, var = check_kernel(batchnorm_statistics, device, x, factor=2)  # sums over many rows
    assert device != "emulated" or launches[0].grid[1] > 4
    check_kernel(batchnorm_backward, device, dy, x, Exact(mean.get()), Exact(var.get()), None, 1e-5, factor=3)


@on_devices
@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(device, mean):
    """burn-rs #5607, pytorch PR #40308, down the columns: a one-pass variance gives 0 or garbage here."""
    x = np.tile((mean + np.array([[0], [0.5], [1], [1.5]])).astype(np.float32), (1, 5))
    found = check_kernel(batchnorm_statistics, device, x)
    assert found[0].get().tolist() == [mean + 0.75] * 5
    assert found[1].get().tolist() == [0.3125] * 5


@on_devices
def test_a_first_row_far_from_the_others(device, rng):
    """The shift by which large means are kept from cancelling is then itself far off."""
    x = rng.normal(size=(40, 6)).astype(np.float32)
    x[0] = 1000
    check_kernel(batchnorm_statistics, device, x)


@on_devices
def test_no_rows(device):
    """Nothing is launched: the kernels read the first row."""
    with record_launches() as launches:
        found = check_kernel(batchnorm_statistics, device, np.zeros((0, 5), np.float32))
    assert not launches
    assert [v.get().tolist() for v in found] == [[0] * 5] * 2


@on_devices
def test_bad_numbers_stay_in_their_column(device, rng):
    x = rng.normal(size=(20, 9)).astype(np.float32)
    x[3, 2], x[0, 5] = np.nan, np.inf
    mean, var = batchnorm_statistics.cuda(gl.to_device(x, device))
    assert np.isnan(mean.get()).nonzero()[0].tolist() == [2, 5]
    assert np.isnan(var.get()).nonzero()[0].tolist() == [2, 5]


@on_devices
def test_views_and_no_rows(device, rng):
    x, dy = rng.normal(size=(2, 6, 9)).astype(np.float32)
    check_kernel(batchnorm_statistics, device, x.T)
    mean, var = map(Exact, batchnorm_statistics.reference(x.T))
    check_kernel(batchnorm, device, x.T, mean, var, None, None, 1e-5)
    check_kernel(batchnorm_backward, device, dy.T, x.T, mean, var, None, 1e-5, factor=3)
    check_kernel(batchnorm, device, x.T[:0], mean, var, None, None, 1e-5)
    check_kernel(batchnorm_backward, device, dy.T[:0], x.T[:0], mean, var, None, 1e-5)


@on_devices
@in_storage
def test_rows_at_every_alignment(device, storage, rng):
    """A row of a multiple of 16 bytes, in memory that does not begin on one."""
    x, dy = (gl.to_device(a, device).astype(storage) for a in rng.normal(size=(2, 6 * 16 + 1)).astype(np.float32))
    x, dy = x[1:].reshape(6, 16), dy[1:].reshape(6, 16)
    aligned_x, aligned_dy = x.copy(), dy.copy()
    mean, var = batchnorm_statistics(x)
    assert mean.get().tolist() == batchnorm_statistics(aligned_x)[0].get().tolist()
    for fixed in (False, True):
        args = (mean, var, None, 1e-5, fixed)
        for a, b in zip(
            batchnorm_backward(dy, x, *args), batchnorm_backward(aligned_dy, aligned_x, *args), strict=True
        ):
            assert np.array_equal(a.get(), b.get())
    y = batchnorm(x, mean, var, None, None, 1e-5)
    assert np.array_equal(y.get(), batchnorm(aligned_x, mean, var, None, None, 1e-5).get())


@on_devices
@pytest.mark.parametrize("cols", [1, 33, 1030])
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
@pytest.mark.parametrize(("apply", "samples"), [(None, ()), (1, ()), (0, ()), (1, (3,)), (0, (3,))])
def test_update(device, cols, momentum, apply, samples, rng):
    """samples: how many statistics are averaged first, those of instance normalisation."""
    old = rng.normal(size=(2, cols)).astype(np.float32)
    mean, var = rng.normal(size=(2, *samples, cols)).astype(np.float32)
    control = None if apply is None else np.array([apply, 7, 7, 7, 7, 7], np.float32)
    arrays = (*old, np.array([4]), mean, abs(var))
    here = [a.astype(np.float64) if a.dtype == np.float32 else a.copy() for a in arrays]
    there = [gl.to_device(a, device) for a in arrays]
    batchnorm_update.reference(*here, 5, momentum, control)
    batchnorm_update.cuda(*there, 5, momentum, None if control is None else gl.to_device(control, device))
    for a, b in zip(there, here, strict=True):
        assert np.allclose(a.get(), b, rtol=1e-6, atol=1e-6)
    if apply == 0:
        assert all(a.get().tobytes() == b.tobytes() for a, b in zip(there, arrays, strict=True))
    else:
        assert there[2].get().tolist() == [5]


@on_devices
def test_refused(device, rng):
    x = gl.to_device(np.ones((4, 6), np.float32), device)
    six, five = (gl.to_device(np.ones(n, np.float32), device) for n in (6, 5))
    with pytest.raises(ValueError, match=r"batchnorm: bias must have shape \(6,\), got \(5,\)"):
        batchnorm(x, six, six, six, five, 1e-5)
    with pytest.raises(
        ValueError, match=r"batchnorm_backward: dy must be float32 \(4, 6\) as x is, got float32 \(2, 6\)"
    ):
        batchnorm_backward(x[:2], x, six, six, None, 1e-5)
    with pytest.raises(ValueError, match=r"batchnorm_update: running_var must have shape \(6,\)"):
        batchnorm_update(six, five, gl.to_device(np.array([0]), device), six, six, 4, 0.1)


def test_offsets_beyond_32_bits(monkeypatch):
    """The last stretch of an array of more than 2^31 elements, most of whose memory is never touched."""
    cols, rows = 1 << 14, (1 << 17) + 8
    x = gl.use("emulated").empty((rows, cols), np.float16)
    vector = gl.to_device(np.ones(cols, np.float32), "emulated")
    x[-64:] = 3
    monkeypatch.setattr("gpulayers.ops.batchnorm.TILE_BLOCKS", 1 << 20)  # so that the last block is a short one
    grid = gl.ops.batchnorm.tiles(x)[0]
    only_block(monkeypatch, grid[0] * grid[1] - 1)
    y = batchnorm(x, vector, vector, None, None, 0.0)
    assert (y[-1, -8:].get() == 2).all()
