import math

import numpy as np
import pytest
from contract import check_op, check_signatures
from devices import on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.ops.gelu import gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace
from gpulayers.ops.normal import normal_cdf, normal_cpu

both = pytest.mark.parametrize("approximate", ["none", "tanh"])


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (131, 1023), (0, 4), (4, 0), (2, 3, 5)])
def test_bodies_agree(approximate, bias, shape, rng):
    x, dy = rng.normal(0, 2, (2, *shape)).astype(np.float32)
    b = rng.normal(size=shape[-1]).astype(np.float32) if bias else None
    check_op(gelu, x, b, approximate)
    check_op(gelu_with_derivative, x, b, approximate)
    check_op(gelu_backward, dy, x, b, approximate)


@both
@pytest.mark.parametrize("value", [-1e-3, -1, -3, -5, 0.0, 1e-3, 1, 3, 5])
def test_each_value_has_its_digits(approximate, value):
    """One value a time, so that the tolerance is that of the value: (1 + erf) / 2 would lose four digits at -5."""
    x = np.full((1, 1), value, np.float32)
    check_op(gelu, x, None, approximate)
    assert_close(gelu.bodies["cpu"](x, None, approximate), gelu.reference(x.astype(np.float64), None, approximate))


@both
@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_inplace_leaves_the_derivative(approximate, body, rng):
    check_signatures(gelu_with_derivative_inplace)
    x = rng.normal(0, 2, (70, 501)).astype(np.float32)
    bias = rng.normal(size=501).astype(np.float32)
    y, derivative = gelu_with_derivative.bodies[body](x, bias, approximate)
    assert np.array_equal(gelu_with_derivative_inplace.bodies[body](x, bias, approximate), y)
    assert np.array_equal(x, derivative)


def test_inplace_refuses_a_view_that_it_could_not_fill(rng):
    with pytest.raises(ValueError, match="gelu_with_derivative_inplace: x must be contiguous, got strides"):
        gelu_with_derivative_inplace(np.zeros((4, 3), np.float32).T)


def test_unknown_approximation_is_refused():
    for dtype in (np.float32, np.float64):
        with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh', got 'sigmoid'"):
            gelu(np.zeros((1, 1), dtype), None, "sigmoid")


def test_transposed_view_and_bias(rng):
    x = rng.normal(size=(40, 30)).astype(np.float32)
    bias = rng.normal(size=40).astype(np.float32)
    for approximate in ("none", "tanh"):
        assert np.array_equal(gelu(x.T, bias, approximate), gelu(np.ascontiguousarray(x.T), bias, approximate))


def test_normal_cdf_against_math_erfc():
    x = np.concatenate([np.linspace(-38, 38, 3041), [0.0, -0.0, 1e-300, -1e-9]])
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    error = np.abs(normal_cdf(x) - exact)
    assert error.max() < 5e-16
    assert (error / exact)[np.abs(x) < 8].max() < 2e-14  # the tail keeps its digits


def test_the_table_of_the_cpu_against_math_erfc():
    """Down to the least normal numbers of float32, at the points of the table and between them."""
    x = np.concatenate([np.linspace(-13, 13, 99_991), np.arange(-13, 13, 1 / 512)]).astype(np.float32)
    cdf, density = np.empty_like(x), np.empty_like(x)
    normal_cpu(x, cdf, density, [np.empty_like(x) for _ in range(3)], derive=True)
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()])
    exact_density = np.exp(-(x.astype(np.float64) ** 2) / 2) / math.sqrt(2 * math.pi)
    for found, right in ((cdf, exact), (density, exact_density)):
        error = np.abs(found / right - 1)
        assert error.max() < 1e-6
        assert error[np.abs(x) < 4].max() < 6e-7


def test_beyond_the_table():
    x = np.array([[13.999, 14, 1e30, np.inf, np.nan, -14, -1e30, -np.inf]], np.float32)
    y, derivative = gelu_with_derivative(x)
    assert np.array_equal(y, [[x[0, 0], 14, np.float32(1e30), np.inf, np.nan, 0, 0, 0]], equal_nan=True)
    assert np.array_equal(derivative, [[1, 1, 1, 1, np.nan, 0, 0, 0]], equal_nan=True)


@both
@on_devices
def test_the_limit_at_minus_infinity(approximate, device):
    """0, and flat, on every body: -inf times 0 would be NaN."""
    x = np.array([[-np.inf, -1e30, -50]], np.float32)
    for where in ("numpy", device):
        there = gl.to_device(x, where)
        for body in (gelu_with_derivative, gelu_with_derivative.reference):
            y, derivative = (gl.to_device(a, "numpy") for a in body(there, None, approximate))
            assert np.array_equal(y, [[0, 0, 0]])
            assert np.abs(derivative).max() < 1e-30
        assert np.array_equal(gl.to_device(gelu(there, None, approximate), "numpy"), [[0, 0, 0]])


def test_exact_and_tanh_differ_by_less_than_5e4(rng):
    x = np.linspace(-6, 6, 1001)
    difference = np.abs(gelu(x, None, "none") - gelu(x, None, "tanh"))
    assert 4e-4 < difference.max() < 5e-4
