import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward, silu, silu_with_derivative, tanh, tanh_backward


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(1,), (0, 4), (5, 3), (2, 3, 131), (2, 1024)])
def test_against_the_reference(device, storage, shape, rng):
    x, dy = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    for op in (sigmoid, tanh, silu, silu_with_derivative):
        check_kernel(op, device, x, storage=storage)
    for forward, backward in ((sigmoid, sigmoid_backward), (tanh, tanh_backward)):
        check_kernel(backward, device, dy, forward.reference(x), storage=storage)


@on_devices
@pytest.mark.parametrize("op", [sigmoid, tanh, silu, silu_with_derivative])
@pytest.mark.parametrize("value", [-30, -10, -3, -1e-3, 1e-3, 3, 10, 30])
def test_each_value_has_its_digits(device, op, value):
    check_kernel(op, device, np.full((1, 1), value, np.float32), factor=2)  # exp of a rounded argument


@on_devices
@in_storage
def test_extremes(device, storage):
    x = np.array([-6e4, -1000, -89, 89, 1000, 6e4, np.nan], np.float32)
    for op in (sigmoid, tanh, silu, silu_with_derivative):
        check_kernel(op, device, x, storage=storage)


@on_devices
def test_views(device, rng):
    x, y = rng.uniform(size=(2, 7, 12)).astype(np.float32)
    check_kernel(silu, device, x.T[::2])
    check_kernel(sigmoid_backward, device, x[:, 1:], y[:, :-1])
