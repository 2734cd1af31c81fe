import numpy as np
import pytest
from contract import check_signatures

from gpulayers.ops.sum_of_squares import ROW, sum_of_squares
from gpulayers.optim.optimizer import PIECE

HOST = [body for name, body in sum_of_squares.bodies.items() if name != "cuda"]


@pytest.mark.parametrize("shape", [(0,), (1,), (1023,), (ROW,), (3 * ROW + 7,), (5, 0, 3), (101, 97)])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_bodies_agree(shape, limit, rng):
    check_signatures(sum_of_squares)
    x = rng.normal(size=shape).astype(np.float32)
    limit = None if limit is None else np.array([limit])
    clipped = x.astype(np.float64) if limit is None else np.clip(x.astype(np.float64), -limit, limit)
    for body in HOST:
        found = body(x, limit)
        assert found.dtype == np.float64
        assert found.shape == (1,)
        assert found[0] == pytest.approx((clipped**2).sum(), rel=1e-7)


def test_views(rng):
    x = rng.normal(size=(64, 300)).astype(np.float32)
    for view in (x.T, x[::2], x[:, 1:], x.reshape(-1)[::3]):
        check_view = (view.astype(np.float64) ** 2).sum()
        assert sum_of_squares(view)[0] == pytest.approx(check_view, rel=1e-7)


def test_into_out(rng):
    x, out = rng.normal(size=ROW + 1).astype(np.float32), np.full(3, 7.0)
    sum_of_squares(x, out=out[1:2])
    assert out[0] == out[2] == 7
    assert out[1] == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-7)


@pytest.mark.parametrize("size", [2, ROW, 2 * ROW + 3])
@pytest.mark.parametrize("value", [1e20, 3e38, 1e-30])  # H16: the square leaves float32, the sum is finite
def test_no_square_leaves_the_range(size, value):
    x = np.full(size, value, np.float32)
    assert sum_of_squares(x)[0] == pytest.approx(size * float(x[0]) ** 2, rel=1e-12)


def test_one_huge_element_among_small_ones():
    x = np.ones(4 * ROW, np.float32)
    x[ROW + 5] = 1e30
    assert sum_of_squares(x)[0] == pytest.approx(1e60 + len(x), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, ROW + 1, 2 * ROW])
def test_not_finite_is_seen(bad, place):
    x = np.ones(2 * ROW + 1, np.float32)
    x[place] = bad
    for body in HOST:
        assert not np.isfinite(body(x)[0])


def test_the_argument_is_not_written(rng):
    x = rng.normal(size=2 * ROW + 5).astype(np.float32)
    before = x.copy()
    for body in HOST:
        body(x, np.array([0.1]))
        body(x)
        assert np.array_equal(x, before)


def test_the_pieces_of_an_optimizer_have_rows_enough():
    """NumPy keeps Python's lock in a `vecdot` of 500 rows or fewer, and other threads wait."""
    assert PIECE // ROW > 500
