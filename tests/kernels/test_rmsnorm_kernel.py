import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward

COLS = [1, 2, 5, 8, 31, 33, 128, 129, 1023, 1025]


@on_devices
@in_storage
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("affine", [True, False])
def test_against_the_reference(device, storage, cols, affine, rng):
    x, dy = rng.normal(1, 2, (2, 5, cols)).astype(np.float32)
    weight = rng.normal(size=cols).astype(np.float32) if affine else None
    check_kernel(rmsnorm, device, x, weight, 1e-5, storage=storage)
    rstd = rmsnorm.reference(x, weight, 1e-5)[1]
    terms = rstd.max() * np.abs(dy if weight is None else dy * weight).max()  # with one column dx is nearly 0
    check_kernel(rmsnorm_backward, device, dy, x, Exact(rstd), weight, storage=storage, factor=2, scale=terms)


@on_devices
def test_more_rows_than_blocks(device, rng, monkeypatch):
    monkeypatch.setattr("gpulayers.ops.layernorm.BLOCKS", 3)
    x, dy = rng.normal(size=(2, 61, 9)).astype(np.float32)
    weight = rng.normal(size=9).astype(np.float32)
    rstd = Exact(rmsnorm.reference(x, weight, 1e-5)[1])
    check_kernel(rmsnorm_backward, device, dy, x, rstd, weight, factor=2, spare=False)  # sums over 61 rows


@on_devices
def test_views_and_nothing(device, rng):
    x = rng.normal(size=(7, 12)).astype(np.float32)
    for view in (x.T[::2], x[:, 1:], x[:0]):
        check_kernel(rmsnorm, device, view, None, 1e-5)
        rstd = Exact(rmsnorm.reference(view, None, 1e-5)[1])
        check_kernel(rmsnorm_backward, device, view, view, rstd, None, factor=3, scale=3)


@on_devices
def test_a_nan_is_not_hidden(device, rng):
    """The mean square of its row is NaN, and so is all of the row; the others know nothing of it."""
    x = rng.normal(size=(3, 40)).astype(np.float32)
    x[1, 7] = np.nan
    y, rstd = (a.get() for a in rmsnorm(gl.to_device(x, device), None, 1e-5))
    assert np.isnan(y[1]).all()
    assert np.isnan(rstd).tolist() == [False, True, False]
    assert np.isfinite(y[::2]).all()
