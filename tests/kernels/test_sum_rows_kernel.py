import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.sum_rows import sum_partials, sum_rows

SHAPES = [(1, 1), (3, 2), (9, 33), (65, 5), (200, 131), (2, 1023), (3, 1024)]  # one or more stretches of rows, tiles


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(device, storage, shape, rng):
    check_kernel(sum_rows, device, rng.normal(1, 1, shape).astype(np.float32), storage=storage)


@on_devices
def test_views_and_nothing(device, rng):
    x = rng.normal(size=(70, 12)).astype(np.float32)
    check_kernel(sum_rows, device, x.T)
    check_kernel(sum_rows, device, x[:, 1:])
    check_kernel(sum_rows, device, x[:0])
    check_kernel(sum_rows, device, x[:, :0])


@on_devices
@pytest.mark.parametrize("count", [1, 2, 31, 33, 264])
def test_sum_of_partial_sums(device, count, rng):
    partial = rng.normal(size=(count, 2, 19)).astype(np.float32)
    total = sum_partials(gl.to_device(partial, device)).get()
    np.testing.assert_allclose(total, partial.astype(np.float64).sum(axis=0), atol=2e-6 * count**0.5)
