import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.elementwise import multiply
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward
from gpulayers.ops.sigmoid import (
    sigmoid,
    sigmoid_backward,
    silu,
    silu_with_derivative,
    tanh,
    tanh_backward,
)

SHAPES = pytest.mark.parametrize("shape", [(1, 1), (7,), (131, 1023), (0, 4), (4, 0), (2, 3, 5)])


@SHAPES
def test_bodies_agree(shape, rng):
    x, dy = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    check_op(multiply, dy, x)
    for op in (relu, sigmoid, tanh, silu, silu_with_derivative):
        check_op(op, x)
    for forward, backward in ((relu, relu_backward), (sigmoid, sigmoid_backward), (tanh, tanh_backward)):
        check_op(backward, dy, forward.reference(x))
    for slope in (0.01, 0.0, 1.0, 2.0, -1.0):
        check_op(leaky_relu, x, slope)
        check_op(leaky_relu_backward, dy, x, slope)


@pytest.mark.parametrize("shape", [(1, 1), (131, 1023), (40_001, 2), (0, 4), (4, 0)])
@pytest.mark.parametrize("channels", [True, False])
def test_prelu_bodies_agree(shape, channels, rng):
    x, dy = rng.normal(size=(2, *shape)).astype(np.float32)
    weight = rng.normal(size=shape[1] if channels else 1).astype(np.float32)
    check_op(prelu, x, weight)
    check_op(prelu_backward, dy, x, weight, factor=10)  # dweight is a sum over up to 131 * 1023 terms that cancel


@pytest.mark.parametrize("op", [relu, sigmoid, tanh, silu, silu_with_derivative])
@pytest.mark.parametrize("value", [-30, -10, -3, -1e-3, 1e-3, 3, 10, 30])
def test_each_value_has_its_digits(op, value):
    check_op(op, np.full((1, 1), value, np.float32), factor=2)  # exp of a rounded argument


@pytest.mark.parametrize(("op", "floor"), [(sigmoid, 1e-36), (tanh, 0), (silu, 1e-36), (silu_with_derivative, 3e-7)])
def test_dense_sweep(op, floor):
    """A float32 in every 16411 of all that there are, infinities and NaN among them.

    floor: below 1e-36 float32 has few digits; the derivative of silu crosses 0.
    """
    x = np.arange(0, 1 << 32, 16411, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan, 88.8, -88.8, -87.4, -103, -104], np.float32)])
    with np.errstate(all="ignore"):  # of float64, and of a signalling NaN
        exact, found = op.reference(x.astype(np.float64)), op(x)
    for a, b in zip(found, exact, strict=True) if isinstance(found, tuple) else [(found, exact)]:
        assert np.array_equal(np.isnan(a), np.isnan(b))
        assert np.array_equal(a[np.isinf(b)], b[np.isinf(b)])
        kept = np.isfinite(b)
        assert (np.abs(a[kept] - b[kept]) <= 3e-6 * np.abs(b[kept]) + floor).all()


@SHAPES
def test_zero_is_hidden(shape):
    """The derivative of relu at 0 is 0, of leaky_relu the slope, in every body."""
    zero, one = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    for body in (relu_backward.reference, relu_backward.cpu):
        assert not body(one, zero).any()
    for body in (leaky_relu_backward.reference, leaky_relu_backward.cpu):
        assert np.array_equal(body(one, zero, 0.25), one / 4)
