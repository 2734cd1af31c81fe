import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.mse import MSE_BLOCKS, MSE_THREADS, mse, mse_loss


@on_devices
@in_storage
@pytest.mark.parametrize("size", [0, 1, 7, 1023, 5000])
def test_against_the_reference(device, storage, size, rng):
    x, target = rng.normal(1, 2, (2, size)).astype(np.float32)
    check_kernel(mse, device, x, target, 1 / max(size, 1), storage=storage)
    scale = Exact(np.array(3, np.float32))
    check_kernel(mse, device, x[::2], target[::-1][::2], 1.0, scale, storage=storage)


@on_devices
def test_more_elements_than_one_pass_of_the_grid(device, monkeypatch, rng):
    monkeypatch.setattr("gpulayers.ops.mse.MSE_BLOCKS", 2)
    x, target = rng.normal(size=(2, 5001)).astype(np.float32)
    assert MSE_BLOCKS * MSE_THREADS > 5001 > 2 * 4 * MSE_THREADS
    check_kernel(mse, device, x, target, 0.5, spare=False)


@on_devices
def test_loss_is_a_scalar_there(device):
    x = gl.to_device(np.array([[1, 2], [3, 5]], np.float16), device)
    loss, dx = mse_loss(x, gl.to_device(np.array([[0, 2], [5, 5]], np.float16), device))
    assert (loss.shape, loss.dtype, float(loss)) == ((), np.float32, 1.25)
    assert dx.get().tolist() == [[0.5, 0], [-1, 0]]
