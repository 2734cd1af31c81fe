"""The kernel of the elementwise activations: every kind, any length, where the pieces of a function meet, extremes."""

import numpy as np
import pytest
from devices import STORAGE, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.activation import FORMULAS, activation, activation_backward

NUMBERS = {"threshold": (0.5, 7), "hardtanh": (-1.25, 2), "elu": (0.75, 0), "celu": (0.75, 0), "softplus": (2, 4)}
every = pytest.mark.parametrize("kind", FORMULAS)


def meetings(kind):
    """x at which two pieces of the function meet, and close to them on either side (a kernel takes 1e-40 for 0)."""
    p, q = NUMBERS.get(kind, (0, 0))
    at = {"threshold": [p], "hardtanh": [p, q], "softplus": [q / p] if p else []}.get(kind, [-3, 0, 3])
    near = [
        (np.nextafter(x, -9, dtype="f4"), x, np.nextafter(x, 9, dtype="f4")) if x else (-1e-30, 0, 1e-30) for x in at
    ]
    return np.array(near, np.float32).ravel()


@on_devices
@every
@in_storage
def test_against_the_reference(device, storage, kind, rng):
    x, dy = rng.normal(0, 3, (2, 3, 41)).astype(np.float32)
    check_kernel(activation, device, kind, x, *NUMBERS.get(kind, ()), storage=storage)
    check_kernel(activation_backward, device, kind, dy, x, *NUMBERS.get(kind, ()), storage=storage)


@on_devices
@in_storage
def test_lengths(device, storage, rng):
    """None; less than 16 bytes; whole packs; two blocks and more in every storage."""
    for size in (0, 1, 64, 4099):
        x, dy = rng.normal(0, 3, (2, size)).astype(np.float32)
        check_kernel(activation, device, "hardswish", x, storage=storage)
        check_kernel(activation_backward, device, "hardswish", dy, x, storage=storage)


@on_devices
@every
def test_where_pieces_meet(device, kind):
    x, numbers = meetings(kind), NUMBERS.get(kind, (0, 0))
    y = check_kernel(activation, device, kind, x, *numbers)[0].get()
    dx = check_kernel(activation_backward, device, kind, np.ones_like(x), x, *numbers)[0].get()
    for found, op, args in ((y, activation, (x,)), (dx, activation_backward, (np.ones_like(x), x))):
        assert found == pytest.approx(
            op.reference(kind, *(a.astype(np.float64) for a in args), *numbers), rel=3e-7, abs=1e-37
        )


@on_devices
@every
def test_each_value_has_its_digits(device, kind):
    """Also where the function is nearly 0 or nearly flat, one by one: a small result beside large ones counts."""
    x, numbers = (
        np.array([-80, -30, -9, -0.7, -1e-3, -1e-6, 1e-6, 1e-3, 0.7, 9, 30, 80], "f4"),
        NUMBERS.get(kind, (0, 0)),
    )
    there, one = gl.to_device(x, device), gl.to_device(np.ones_like(x), device)
    wide = x.astype(np.float64)
    exact = activation.reference(kind, wide, *numbers)
    assert activation(kind, there, *numbers).get() == pytest.approx(exact, rel=2e-6, abs=1e-37)
    exact = activation_backward.reference(kind, np.ones_like(wide), wide, *numbers)
    assert activation_backward(kind, one, there, *numbers).get() == pytest.approx(exact, rel=2e-6, abs=1e-37)


@on_devices
@every
@in_storage
def test_extremes_and_nan(device, storage, kind):
    """What the float64 reference gives, and PyTorch; a NaN in x is one in y."""
    largest = 6e4 if storage == "float16" else 3e38  # selu of the very largest is none
    x = np.array([-np.inf, -largest, largest, np.inf, np.nan, -0.0, 0], np.float32).astype(STORAGE[storage])
    numbers, there = NUMBERS.get(kind, (0, 0)), gl.to_device(x, device)
    wide = x.astype(np.float64)
    y = activation(kind, there, *numbers).get().astype(np.float64)
    exact = activation.reference(kind, wide, *numbers)
    rel = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[storage]
    least = 6e-8 if storage == "float16" else 1e-37
    assert np.isnan(y[4])
    assert y == pytest.approx(exact, rel=rel, abs=least, nan_ok=True)
    assert np.isfinite(y[[1, 2, 5, 6]]).all()
    dx = activation_backward(kind, gl.to_device(np.ones_like(x), device), there, *numbers).get().astype(np.float64)
    exact = activation_backward.reference(kind, np.ones_like(wide), wide, *numbers)
    assert dx == pytest.approx(exact, rel=rel, abs=least, nan_ok=True)
    assert np.isfinite(dx[[1, 2, 5, 6]]).all()


@on_devices
def test_an_infinite_gradient_is_hidden_where_the_function_is_flat(device):
    x, dy = np.array([-5, 0.5, 5], np.float32), np.full(3, np.inf, np.float32)
    (dx,) = check_kernel(activation_backward, device, "hardtanh", dy, x, -1.0, 1.0)
    assert dx.get().tolist() == [0, np.inf, 0]


@on_devices
def test_the_numbers_of_a_kind(device, rng):
    x = rng.normal(0, 3, (4, 33)).astype(np.float32)
    for kind, numbers in (("elu", (-0.5, 0)), ("elu", (0, 0)), ("celu", (-2, 0)), ("softplus", (-1.5, 3))):
        check_kernel(activation, device, kind, x, *numbers)
        check_kernel(activation_backward, device, kind, x[::-1], x, *numbers)
    large = np.array([99, 1e4, 1e30, -1e30], np.float32)  # a threshold that protects nothing
    check_kernel(activation, device, "softplus", large, 1.0, 3e38)
    check_kernel(activation_backward, device, "softplus", large, large, 1.0, 3e38)


@on_devices
def test_views_and_refusals(device, rng):
    x, dy = rng.normal(size=(2, 7, 12)).astype(np.float32)
    check_kernel(activation, device, "mish", x.T[::2])
    check_kernel(activation_backward, device, "mish", dy[:, 1:], x[:, :-1])
    there = gl.to_device(x, device)
    with pytest.raises(ValueError, match=r"activation_backward takes arrays of one shape, got \(12,\) and \(7, 12\)"):
        activation_backward("mish", there[0], there)
    with pytest.raises(TypeError, match="activation_backward takes arrays of one dtype, got float16 and float32"):
        activation_backward("mish", there.astype(np.float16), there)


@on_devices
def test_a_kind_that_is_none(device):
    there = gl.to_device(np.ones(3, np.float32), device)
    for x in (there, np.ones(3, np.float32), np.ones(3)):
        with pytest.raises(ValueError, match=r"activation: kind must be one of threshold, .*, mish, got 'swish'"):
            activation("swish", x)
        with pytest.raises(ValueError, match=r"activation: kind must be one of threshold, .*, mish, got 'swish'"):
            activation_backward("swish", x, x)
