import math

import numpy as np
import pytest
from contract import check_signatures
from rules import SKIP, STEP
from tolerances import assert_close

from gpulayers.ops.move import follow, move
from gpulayers.ops.newton_schulz import newton_schulz
from gpulayers.ops.op import BLOCK

BODIES = pytest.mark.parametrize("body", ["reference", "cpu"])


def test_signatures():
    check_signatures(move)
    check_signatures(follow)


@BODIES
@pytest.mark.parametrize("size", [0, 1, 1023, BLOCK + 5])
@pytest.mark.parametrize("totals", [None, (2.0, 8.0), (0.0, 8.0), (2.0, 0.0)])
def test_move(body, size, totals, rng):
    p, u = rng.normal(size=(2, size)).astype(np.float32)
    trust = 0.5 if totals == (2.0, 8.0) else 1.0
    expected = p * (1 - 0.03 * 0.1) - 0.03 * 0.7 * trust * u.astype(np.float64)
    given = (None, None) if totals is None else tuple(np.array([t]) for t in totals)
    copy = np.zeros(size, np.float16)
    move.bodies[body](p, u, np.array(STEP._replace(rate=0.01), np.float32), 3.0, 0.7, 0.1, *given, copy)
    assert_close(p, expected)
    assert np.array_equal(copy, p.astype(np.float16))


@BODIES
def test_a_skipped_step_changes_no_bit(body, rng):
    p, u, average = rng.normal(size=(3, 33)).astype(np.float32)
    u[3], before = np.nan, (p.tobytes(), average.tobytes())
    copy = np.full(33, 3, np.float16)
    move.bodies[body](p, u, np.array(SKIP, np.float32), 1.0, 1.0, 0.1, None, None, copy)
    follow.bodies[body](average, u, 0.9, np.array(SKIP, np.float32))
    assert (p.tobytes(), average.tobytes()) == before
    assert (copy == 3).all()


@BODIES
@pytest.mark.parametrize("control", [None, np.array(STEP, np.float32)])
def test_follow(body, control, rng):
    average, p = rng.normal(size=(2, BLOCK + 5)).astype(np.float32)
    expected = 0.99 * average.astype(np.float64) + 0.01 * p.astype(np.float64)
    follow.bodies[body](average, p, 0.99, control)
    assert_close(average, expected)


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (1, 4), (4, 1), (16, 16)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_newton_schulz_is_written_out(shape, dtype, rng):
    """Jordan et al.: five steps of X -> a X + (b A + c A A) X, A = X X', from G / |G|."""
    g = rng.normal(size=shape).astype(dtype)
    x = g.astype(np.float64)
    x = x / math.sqrt((x**2).sum())
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    found = newton_schulz(g)
    assert found.dtype == dtype
    assert_close(found, x, dtype, factor=20)  # fifteen products that follow each other


def test_newton_schulz_is_nearly_orthogonal(rng):
    g = rng.normal(size=(40, 20))
    singular = np.linalg.svd(newton_schulz(g), compute_uv=False)
    assert 0.6 < singular.min() <= singular.max() < 1.3
    u, _, v = np.linalg.svd(g, full_matrices=False)
    assert abs(newton_schulz(g) - u @ v).max() < 0.3
    assert not newton_schulz(np.zeros((3, 2))).any()


def test_follow_of_a_whole_number_of_updates(rng):
    """k updates with a constant p leave decay^k of the start."""
    average, p = np.ones(3), np.zeros(3)
    for _ in range(10):
        follow(average, p, 0.9)
    assert average == pytest.approx(np.full(3, 0.9**10), rel=1e-14)
