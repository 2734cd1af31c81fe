import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    softmin,
    softmin_backward,
)

SHAPES = [(1, 1), (5, 3), (300, 1023), (2, 50257), (0, 4), (3, 0)]
PAIRS = [(softmax, softmax_backward), (log_softmax, log_softmax_backward), (softmin, softmin_backward)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_bodies_agree(shape, offset, forward, backward, rng):
    x, dy = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    x += np.float32(offset)
    check_op(forward, x)
    check_op(forward, np.asfortranarray(x))
    y = forward.reference(x)
    check_op(backward, dy, y, factor=3)  # sums over a row
    check_op(backward, np.asfortranarray(dy), np.asfortranarray(y), factor=3)


@pytest.mark.parametrize("offset", [100, -100, 1e4])
def test_a_later_block_needs_its_maximum(offset, rng):
    """The first block of rows may do without it; the one with this row, and all after it, may not."""
    x = rng.normal(0, 3, (300, 1023)).astype(np.float32)
    x[150] += np.float32(offset)
    check_op(softmax, x)
    check_op(softmin, x)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_worked_numbers(body):
    y = softmax.bodies[body](np.array([[2, 1, 0.1]], np.float32))
    assert np.allclose(y, [[0.6590, 0.2424, 0.0986]], atol=5e-5)
    assert np.allclose(log_softmax.bodies[body](np.array([[2, 1, 0.1]], np.float32)), np.log(y), atol=1e-6)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_h04_whole_jacobian(body):
    """wkcn/mobula #3: the cross terms count; only unequal upstream values show it."""
    y = softmax.bodies[body](np.array([[1, 2, 3]] * 3, np.float32))
    dy = np.array([[1, 0, 0], [0.5, -1, 2], [1, 1, 1]], np.float32)
    right = [[0.0819251, -0.0220330, -0.0598920], [-0.0567885, -0.5214598, 0.5782482], [0, 0, 0]]
    assert np.allclose(softmax_backward.bodies[body](dy, y), right, atol=3e-7)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_extremes(body):
    """H03 (overflow); a hidden class; a row of nothing but -inf; NaN and inf stay in their row."""
    inf = np.inf
    x = np.array([[1000, 0, -1000], [0, -inf, 0], [-inf] * 3, [np.nan, 0, 0], [inf, 0, 0], [3.4e38, 0, -3.4e38]])
    x = x.astype(np.float32)
    y = softmax.bodies[body](x)
    assert y[[0, 1, 2, 5]].tolist() == [[1, 0, 0], [0.5, 0, 0.5], [0, 0, 0], [1, 0, 0]]
    assert np.isnan(y[3:5]).any(axis=1).all()
    logarithm = log_softmax.bodies[body](x)
    assert logarithm[[0, 2]].tolist() == [[0, -1000, -2000], [-inf] * 3]
    assert np.allclose(logarithm[1], [-np.log(2), -inf, -np.log(2)])
    assert not softmax_backward.bodies[body](np.ones((1, 3), np.float32), y[2:3]).any()


def test_float16_is_computed_in_float32():
    x = np.array([[12, 0, -12]], np.float16)
    assert softmax(x).dtype == np.float16
    assert np.allclose(log_softmax(x).astype(float), [[-6.1e-6, -12, -24]], atol=1e-2)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_softmin_is_softmax_of_the_negative(body, rng):
    x, dy = rng.normal(0, 3, (2, 4, 5)).astype(np.float32)
    x[0] = np.inf
    y = softmin.bodies[body](x)
    assert np.array_equal(y, softmax.bodies[body](-x))
    assert not y[0].any()
    assert np.array_equal(softmin_backward.bodies[body](dy, y), -softmax_backward.bodies[body](dy, y))
