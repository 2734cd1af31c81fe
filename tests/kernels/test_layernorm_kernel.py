import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

from gpulayers.ops.layernorm import layernorm, layernorm_backward

COLS = [1, 2, 5, 8, 31, 33, 128, 129, 1023, 1025]


@on_devices
@in_storage
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("affine", [True, False])
def test_against_the_reference(device, storage, cols, affine, rng):
    x, dy = rng.normal(1, 2, (2, 5, cols)).astype(np.float32)
    weight, bias = rng.normal(size=(2, cols)).astype(np.float32) if affine else (None, None)
    check_kernel(layernorm, device, x, weight, bias, 1e-5, storage=storage)
    mean, rstd = layernorm.reference(x, weight, bias, 1e-5)[1:]
    terms = rstd.max() * np.abs(dy if weight is None else dy * weight).max()  # with two columns dx is nearly 0
    args = (dy, x, Exact(mean), Exact(rstd), weight)
    check_kernel(layernorm_backward, device, *args, storage=storage, factor=2, scale=terms)


@on_devices
def test_more_rows_than_blocks(device, rng):
    x, dy = rng.normal(size=(2, 600, 9)).astype(np.float32)
    weight = rng.normal(size=9).astype(np.float32)
    mean, rstd = (Exact(a) for a in layernorm.reference(x, weight, None, 1e-5)[1:])
    check_kernel(layernorm_backward, device, dy, x, mean, rstd, weight, factor=3)  # sums over 600 rows


@on_devices
@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(device, mean):
    x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    y, _, _ = check_kernel(layernorm, device, x, None, None, 1e-5)
    assert y.get() == pytest.approx(np.array([[-1.3416193, -0.4472064, 0.4472064, 1.3416193]]), rel=1e-6)


@on_devices
def test_views_and_nothing(device, rng):
    x = rng.normal(size=(7, 12)).astype(np.float32)
    check_kernel(layernorm, device, x.T[::2], None, None, 1e-5)
    check_kernel(layernorm, device, x[:, 1:], None, None, 1e-5)
    check_kernel(layernorm, device, x[:0], None, None, 1e-5)
