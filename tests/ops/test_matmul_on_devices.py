import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

from gpulayers.ops.matmul import product


@on_devices
@in_storage
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_against_the_reference(device, storage, bias, batch, rng):
    a, b = (rng.normal(size=(*batch, *shape)).astype(np.float32) for shape in ((5, 33), (33, 7)))
    added = rng.normal(size=7).astype(np.float32) if bias else None
    (y,) = check_kernel(product, device, a, b, bias=added, storage=storage, factor=4)  # sums of 33 products
    assert y.dtype == storage


@on_devices
@in_storage
def test_transposed_and_nothing(device, storage, rng):
    a = rng.normal(size=(33, 5)).astype(np.float32)
    check_kernel(product, device, a.T, a, storage=storage, factor=4)
    check_kernel(product, device, a[:0], a.T, storage=storage)
    check_kernel(product, device, a.T[:, :0], a[:0], storage=storage)
