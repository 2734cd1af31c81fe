import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.glu import GATES, TILE, glu, glu_backward

every = pytest.mark.parametrize("gate", GATES)


@every
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (131, 1023), (2, TILE + 1), (0, 4), (4, 0)])
def test_bodies_agree(gate, shape, rng):
    if gate == "gelu" and shape[1] > 1000:
        shape = (shape[0] // 40 + 1, shape[1])  # its reference is an integral
    rows, cols = shape
    x, dy = rng.normal(0, 2, (rows, 2 * cols)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    check_op(glu, x, gate)
    check_op(glu_backward, dy, x, gate)
    check_op(glu, np.asfortranarray(x), gate)
    check_op(glu_backward, dy[:, ::-1], x[:, ::-1], gate)


@every
@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_extremes(gate, body):
    """A closed gate passes nothing, an open one everything; nothing overflows on the way."""
    x = np.array([[3, 9, 3, 2, np.nan, 2, -3e38, -200, 200, 1e30, 0, np.nan]], np.float32)
    y = glu.bodies[body](x, gate)
    half = {"sigmoid": 0.5}.get(gate, 0)
    wanted = np.array([0, 0, 3, 2, np.nan, np.nan]) * ([1] * 6 if gate == "sigmoid" else [1, 1, 200, 1e30, 1, 1])
    assert y[0] == pytest.approx(wanted, rel=1e-6, abs=1e-30, nan_ok=True)
    dx = glu_backward.bodies[body](np.ones_like(y), x, gate)[0]
    assert dx[:4] == pytest.approx(wanted[:4] / [3, 9, 3, 2], rel=1e-6, abs=1e-30)
    assert dx[4] == half
    assert np.isfinite(dx[6:10]).all()
    assert np.isnan(dx[[5, 10, 11]]).all()


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("gate", "y", "dx"),
    [
        ("sigmoid", [0.73105858 * 2, 1.5], [0.73105858, 0.5, 0.19661193 * 2, 0.75]),
        ("silu", [0.73105858 * 2, 0], [0.73105858, 0, 0.92767051 * 2, 1.5]),
        ("gelu", [0.84134475 * 2, 0], [0.84134475, 0, 1.08331547 * 2, 1.5]),
        ("gelu_tanh", [0.84119199 * 2, 0], [0.84119199, 0, 1.08296408 * 2, 1.5]),
    ],
)
def test_worked_numbers(body, gate, y, dx):
    x = np.array([[2, 3, 1, 0]], np.float32)
    assert glu.bodies[body](x, gate)[0] == pytest.approx(y, rel=4e-7)
    assert glu_backward.bodies[body](np.ones((1, 2), np.float32), x, gate)[0] == pytest.approx(dx, rel=4e-7)
