import numpy as np
import pytest
from contract import check_signatures
from devices import STORAGE, check_kernel, in_storage, on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.ops.gelu import gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace

both = pytest.mark.parametrize("approximate", ["none", "tanh"])


@on_devices
@in_storage
@both
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 8), (2, 3, 131), (2, 1024)])
@pytest.mark.parametrize("bias", [True, False])
def test_against_the_reference(device, storage, approximate, shape, bias, rng):
    x, dy = rng.normal(0, 2, (2, *shape)).astype(np.float32)
    b = rng.normal(size=shape[-1]).astype(np.float32) if bias else None
    check_kernel(gelu, device, x, b, approximate, storage=storage)
    check_kernel(gelu_with_derivative, device, x, b, approximate, storage=storage)
    check_kernel(gelu_backward, device, dy, x, b, approximate, storage=storage)


@on_devices
@in_storage
@both
def test_inplace_leaves_the_derivative(device, storage, approximate, rng):
    check_signatures(gelu_with_derivative_inplace)
    x = gl.to_device(rng.normal(0, 2, (7, 51)).astype(STORAGE[storage]), device)
    bias = gl.to_device(rng.normal(size=51).astype(STORAGE[storage]), device)
    y, derivative = gelu_with_derivative(x, bias, approximate)
    assert np.array_equal(gelu_with_derivative_inplace(x, bias, approximate).get(), y.get())
    assert np.array_equal(x.get(), derivative.get())
    with pytest.raises(ValueError, match="gelu_with_derivative_inplace: x must be contiguous, got strides"):
        gelu_with_derivative_inplace(x.T, None, approximate)


@on_devices
@in_storage
def test_inplace_at_any_alignment(device, storage, rng):
    flat = gl.to_device(rng.normal(size=49).astype(STORAGE[storage]), device)
    x = flat[1:].reshape(3, 16)
    y, derivative = gelu_with_derivative(x.copy(), None, "none")
    assert np.array_equal(gelu_with_derivative_inplace(x, None, "none").get(), y.get())
    assert np.array_equal(x.get(), derivative.get())


@on_devices
@both
@pytest.mark.parametrize("value", [-1e-3, -1, -3, -5, 0.0, 1e-3, 1, 3, 5])
def test_each_value_has_its_digits(device, approximate, value):
    x = np.full((1, 1), value, np.float32)
    check_kernel(gelu, device, x, None, approximate)


@on_devices
@both
def test_extremes(device, approximate):
    x = np.array([[-3e38, -100, -40, -13.5, 13.5, 40, 100, 3e38, np.nan]], np.float32)
    y, derivative = gelu_with_derivative(gl.to_device(x, device), None, approximate)
    assert_close(y.get(), [[0, 0, 0, 0, 13.5, 40, 100, x[0, 7], np.nan]])
    assert_close(derivative.get(), [[0, 0, 0, 0, 1, 1, 1, 1, np.nan]])


@on_devices
def test_views_nothing_and_refusals(device, rng):
    x, dy = rng.normal(size=(2, 7, 12)).astype(np.float32)
    bias = rng.normal(size=7).astype(np.float32)
    check_kernel(gelu, device, x.T, bias, "tanh")
    check_kernel(gelu_backward, device, dy[:, 1:], x[:, :-1], None, "none")
    check_kernel(gelu, device, x[:0], None, "none")
    there = gl.to_device(x, device)
    with pytest.raises(ValueError, match=r"gelu takes arrays of one shape, got \(7, 12\) and \(12,\)"):
        gelu_backward(there, there[0])
    with pytest.raises(TypeError, match="gelu takes arrays of one dtype, got float32 and float16"):
        gelu_backward(there, there.astype(np.float16))
    with pytest.raises(ValueError, match=r"gelu: bias must be float32 of shape \(12,\), got float32 \(7,\)"):
        gelu(there, there[:, 0])
    with pytest.raises(ValueError, match="gelu: approximate must be"):
        gelu(there, None, "erf")
