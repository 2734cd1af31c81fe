"""The elementwise activations: the bodies agree at every float, digits where pieces meet, and the fast functions."""

import numpy as np
import pytest
from contract import check_op

from gpulayers.ops import fast_math
from gpulayers.ops.activation import FORMULAS, PIECE, activation, activation_backward

NUMBERS = {"threshold": (0.5, 7.0), "hardtanh": (-1.25, 2.0), "elu": (0.75,), "celu": (0.5,), "softplus": (2.0, 4.0)}
every = pytest.mark.parametrize("kind", FORMULAS)


@every
@pytest.mark.parametrize("shape", [(1, 1), (7,), (3, PIECE), (0, 4), (2, 3, 5)])
def test_bodies_agree(kind, shape, rng):
    x, dy = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    check_op(activation, kind, x, *NUMBERS.get(kind, ()))
    check_op(activation_backward, kind, dy, x, *NUMBERS.get(kind, ()))
    check_op(activation, kind, x.T, *NUMBERS.get(kind, ()))
    check_op(activation_backward, kind, dy.T, x.T, *NUMBERS.get(kind, ()))


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("elu", (-0.5,)), ("elu", (0.0,)), ("celu", (-2.0,)), ("softplus", (-1.5, 3.0)), ("softplus", (1.0, 1e30))],
)
def test_numbers_as_few_choose_them(kind, numbers, rng):
    x, dy = rng.normal(0, 3, (2, 1000)).astype(np.float32)
    check_op(activation, kind, x, *numbers)
    check_op(activation_backward, kind, dy, x, *numbers)


@every
def test_dense_sweep(kind):
    """A float32 in every 16411 of all that there are, infinities and NaN among them, to nearly the last digit.

    The derivatives of hardswish and mish cross 0, where digits are lost; below 1e-36 float32 has few.
    """
    numbers = NUMBERS.get(kind, ())
    x = np.arange(0, 1 << 32, 16411, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan, 88.8, -88.8, -87.4, -103, -104, 0, -0.0], np.float32)])
    with np.errstate(all="ignore"):
        ones, exact_ones = np.ones_like(x), np.ones_like(x, np.float64)
        pairs = [
            (activation(kind, x, *numbers), activation.reference(kind, x.astype(np.float64), *numbers), 0),
            (
                activation_backward(kind, ones, x, *numbers),
                activation_backward.reference(kind, exact_ones, x.astype(np.float64), *numbers),
                3e-7 if kind in ("hardswish", "mish") else 0,
            ),
        ]
    for a, b, floor in pairs:
        assert np.array_equal(np.isnan(a), np.isnan(b))
        kept = np.isfinite(b) & (np.abs(b) < 3.2e38)  # selu of the largest floats is none
        assert np.array_equal(a[np.isinf(b)], b[np.isinf(b)])
        assert (np.abs(a[kept] - b[kept]) <= 2e-6 * np.abs(b[kept]) + 1e-36 + floor).all()
    assert np.isnan(pairs[0][0][np.isnan(x)]).all()


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("kind", "numbers", "x", "slope"),
    [
        ("threshold", (1.0, 5.0), [1.0], [0]),
        ("hardtanh", (0.0, 6.0), [0.0, -0.0, 6.0], [0, 0, 0]),
        ("hardtanh", (-1.0, 2.0), [-1.0, 0.0, 2.0], [0, 1, 0]),
        ("hardsigmoid", (), [-3.0, 0.0, 3.0], [0, 1 / 6, 0]),
        ("hardswish", (), [-3.0, 0.0, 3.0], [0, 0.5, 1]),
        ("elu", (0.5,), [0.0, -0.0], [0.5, 0.5]),
        ("selu", (), [0.0], [1.0507009873554805 * 1.6732632423543772]),
        ("celu", (0.5,), [0.0, -0.0], [1, 1]),
        ("softplus", (2.0, 4.0), [2.0, 2.5], [1 / (1 + np.exp(-4)), 1]),
        ("softsign", (), [0.0, -0.0], [1, 1]),
    ],
)
def test_the_derivative_where_pieces_meet(body, kind, numbers, x, slope):
    """What PyTorch takes there."""
    for dtype, rel in ((np.float32, 2e-7), (np.float64, 1e-15)):
        if body == "cpu" and dtype == np.float64:
            continue
        found = activation_backward.bodies[body](kind, np.ones(len(x), dtype), np.array(x, dtype), *numbers)
        assert found == pytest.approx(np.array(slope), rel=rel, abs=0)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_a_gradient_is_hidden_where_the_function_is_flat(body):
    x, dy = np.array([-5, 0.5, 5], np.float32), np.array([np.inf, np.inf, np.nan], np.float32)
    assert activation_backward.bodies[body]("hardtanh", dy, x, -1.0, 1.0).tolist() == [0, np.inf, 0]


def test_fast_functions():
    """Against NumPy's own: all digits on both sides of where each changes its way."""
    x = -np.logspace(-30, 2, 2001, dtype=np.float32)
    assert fast_math.expm1(x) == pytest.approx(np.expm1(x.astype(np.float64)), rel=4e-7)
    assert fast_math.expm1(-x[x > -80]) == pytest.approx(np.expm1(-x[x > -80].astype(np.float64)), rel=4e-7)
    x = np.logspace(-37, 0, 2001, dtype=np.float32)
    assert fast_math.log1p(x) == pytest.approx(np.log1p(x.astype(np.float64)), rel=4e-7)
    assert fast_math.expm1(x[:0]).shape == fast_math.log1p(x[:0]).shape == (0,)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    chosen = fast_math.where(np.array([True, False, True, True]), odd, 2.5)
    assert np.array_equal(chosen, [np.nan, 2.5, -np.inf, -0.0], equal_nan=True)
    assert np.signbit(chosen[3])
    assert fast_math.where(odd > 0, 1, odd).dtype == fast_math.where(odd > 0, 1, 0).dtype == np.float32
    for function in (lambda x: fast_math.minimum(x, 0), lambda x: fast_math.maximum(x, 0), fast_math.expm1):
        assert np.isnan(function(odd[[0, 3]])[0])
    assert np.isnan(fast_math.log1p(odd[:1])[0])
