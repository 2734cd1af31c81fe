import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(1,), (0, 4), (5, 3), (2, 3, 131), (2, 1024)])
def test_against_the_reference(device, storage, shape, rng):
    x, dy = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    x.reshape(-1)[::3] = 0
    check_kernel(relu, device, x, storage=storage)
    check_kernel(relu_backward, device, dy, relu.reference(x), storage=storage)
    for slope in (0.01, -1.0):
        check_kernel(leaky_relu, device, x, slope, storage=storage)
        check_kernel(leaky_relu_backward, device, dy, x, slope, storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(1, 1), (0, 4), (5, 3), (140, 9), (3, 1025), (2, 1024)])
@pytest.mark.parametrize("channels", [True, False])
def test_prelu(device, storage, shape, channels, rng):
    x, dy = rng.normal(size=(2, *shape)).astype(np.float32)
    weight = rng.normal(size=shape[1] if channels else 1).astype(np.float32)
    check_kernel(prelu, device, x, weight, storage=storage)
    terms = np.abs(dy * x).max(initial=0)
    check_kernel(prelu_backward, device, dy, x, weight, storage=storage, factor=2, scale=terms)


@on_devices
def test_nan_and_views(device, rng):
    x = np.array([[np.nan, -np.inf, np.inf, -0.0]], np.float32)
    check_kernel(relu, device, x)
    check_kernel(leaky_relu, device, x, 0.5)
    x, dy = rng.normal(size=(2, 7, 12)).astype(np.float32)
    check_kernel(relu_backward, device, dy.T, x.T)
    check_kernel(prelu_backward, device, dy[:, 1:], x[:, 1:], rng.normal(size=22).astype(np.float32)[::2])
