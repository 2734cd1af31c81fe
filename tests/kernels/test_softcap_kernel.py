import numpy as np
import pytest
from devices import STORAGE, Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.softcap import softcap, softcap_backward


@on_devices
@in_storage
@pytest.mark.parametrize("size", [0, 1, 9, 1023])
def test_against_the_reference(device, storage, size, rng):
    x, dy = rng.normal(0, 40, size).astype(np.float32), rng.normal(size=size).astype(np.float32)
    dy[::7] = 0
    check_kernel(softcap, device, x[::-1], 30.0, storage=storage)
    check_kernel(softcap_backward, device, x[::-1], Exact(dy), 30.0, False, storage=storage)


@on_devices
@in_storage
def test_in_place(device, storage, rng):
    x, dy = (gl.to_device(rng.normal(size=41).astype(np.float32), device) for _ in range(2))
    x = x.astype(STORAGE[storage])
    dx = softcap_backward(x, dy, 2.0, False)
    assert softcap_backward(x, dy, 2.0, True) is x
    assert np.array_equal(x.get(), dx.get())


@on_devices
def test_infinities_and_nan(device):
    x, dy = np.array([np.inf, -np.inf, np.nan, np.nan], np.float32), np.array([1, 1, 1, 0], np.float32)
    (y,) = check_kernel(softcap, device, x, 5.0)
    assert y.get()[:2].tolist() == [5, -5]
    (dx,) = check_kernel(softcap_backward, device, x, dy, 5.0, False)
    assert dx.get()[[0, 1, 3]].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="dy must have shape"):
        softcap_backward.bodies["cuda"](*(gl.to_device(a, device) for a in (x, dy[:2])), 5.0, False)
