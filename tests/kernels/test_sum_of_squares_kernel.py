import numpy as np
import pytest
from devices import STORAGE, Exact, check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.cuda import launch
from gpulayers.ops import sum_of_squares as module
from gpulayers.ops.sum_of_squares import sum_of_squares


@on_devices
@in_storage
@pytest.mark.parametrize("size", [0, 1, 5, 33, 1023, 16411])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_against_the_reference(device, storage, size, limit, rng):
    x = rng.normal(size=size).astype(np.float32)
    limit = None if limit is None else Exact(np.array([limit]))
    (total,) = check_kernel(sum_of_squares, device, x, limit, storage=storage, factor=1e6)  # "float64" means 1e-12
    assert total.dtype == np.float64
    assert total.shape == (1,)


@on_devices
@in_storage
@pytest.mark.parametrize("blocks", [1, 3])
def test_more_than_the_grid_takes_at_once(device, storage, blocks, monkeypatch, rng):
    monkeypatch.setattr(module, "BLOCKS", blocks)
    check_kernel(sum_of_squares, device, rng.normal(size=20011).astype(np.float32), storage=storage, factor=1e6)


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 3, 8])
def test_any_alignment(device, storage, start, rng):
    x = rng.normal(size=300).astype(np.float32)
    check_kernel(sum_of_squares, device, x, storage=storage, factor=1e6)
    there = gl.to_device(x, device)
    assert sum_of_squares(there[start:-1]).get()[0] == pytest.approx((x[start:-1].astype(float) ** 2).sum(), rel=1e-7)


@on_devices
def test_views(device, rng):
    x = rng.normal(size=(16, 31)).astype(np.float32)
    there = gl.to_device(x, device)
    for view, host in ((there.T, x.T), (there[::2], x[::2]), (there[:, 1:], x[:, 1:])):
        assert sum_of_squares(view).get()[0] == pytest.approx((host.astype(float) ** 2).sum(), rel=1e-7)


@on_devices
@pytest.mark.parametrize("value", [1e20, 3e38, 1e-30, 1e-13])
@pytest.mark.parametrize("size", [2, 1025])
def test_no_square_leaves_the_range(device, value, size):
    """H16: the square of a large finite gradient leaves float32, the sum is finite."""
    x = np.full(size, value, np.float32)
    total = sum_of_squares(gl.to_device(x, device)).get()
    assert total[0] == pytest.approx(size * float(x[0]) ** 2, rel=1e-7, abs=0)


@on_devices
@in_storage
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_not_finite_is_seen(device, storage, bad, limit):
    x = np.ones(1025, np.float32)
    x[777] = bad
    limits = [] if limit is None else [gl.to_device(np.array([limit]), device)]
    total = sum_of_squares(gl.to_device(x.astype(STORAGE[storage]), device), *limits).get()[0]
    if limit is None:
        assert not np.isfinite(total)
    else:  # an infinity is limited as any other value
        assert np.isnan(total) if np.isnan(bad) else total == 1025 * limit**2


@on_devices
def test_into_out(device, rng):
    x = rng.normal(size=100).astype(np.float32)
    out = gl.to_device(np.full(3, 7.0), device)
    sum_of_squares(gl.to_device(x, device), out=out[1:2])
    assert out.get() == pytest.approx(np.array([7, (x.astype(float) ** 2).sum(), 7]), rel=1e-7)


@on_devices
@pytest.mark.parametrize("name", ["limit", "out"])
def test_refused(device, name):
    x = gl.to_device(np.ones(5, np.float32), device)
    with pytest.raises(TypeError, match=f"sum_of_squares: {name} must be float64 of size 1, got float32"):
        sum_of_squares(x, **{name: x[:1]})


def test_h11_elements_beyond_2_to_the_31(monkeypatch):
    """H11 (Paddle pull request 25435): the loop variable of a grid-stride loop overflows though the size does not."""
    cp, blocks = gl.use("emulated"), 1 << 16  # more than the op takes: fewer rounds for the one block that runs
    size = 5 * (blocks * module.THREADS * 8) * module.LOADS  # the last block ends the array
    x, partial = cp.zeros(size, np.float16), cp.zeros(blocks, np.float64)
    x[size - 3 :] = 2
    only_block(monkeypatch, blocks - 1)
    args = (partial, x, None, np.int64(size))
    launch("sum_of_squares", "sum_of_squares", (blocks,), (module.THREADS,), args, storage=np.float16)
    assert size > 2**31
    assert partial.get()[-1] == 12
