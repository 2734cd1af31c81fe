import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.elementwise import multiply


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(1,), (0, 4), (5, 3), (2, 3, 131), (2, 1024), (1025,)])
def test_multiply(device, storage, shape, rng):
    check_kernel(multiply, device, *rng.normal(size=(2, *shape)).astype(np.float32), storage=storage)


@on_devices
def test_views_and_refusals(device, rng):
    x, y = rng.normal(size=(2, 7, 12)).astype(np.float32)
    check_kernel(multiply, device, x.T[::2], y.T[::2])
    check_kernel(multiply, device, x[1:], y[:-1])
    there = gl.to_device(x, device)
    with pytest.raises(ValueError, match=r"multiply takes arrays of one shape, got \(7, 12\) and \(12,\)"):
        multiply(there, there[0])
    with pytest.raises(TypeError, match="multiply takes arrays of one dtype, got float32 and float16"):
        multiply(there, there.astype(np.float16))
