import numpy as np
import pytest
from contract import check_op
from tolerances import assert_close

from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward, exp_of

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (3, 1, 1023, 2), (70, 1, 7, 131), (0, 3, 5, 7), (2, 0, 5, 7), (2, 3, 0, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bodies(shape, rng):
    B, T, S, A = shape
    query, keys, v = (rng.normal(size=s).astype(np.float32) for s in ((B, T, A), (B, S, A), (A,)))
    check_op(additive_scores, query, keys, v)
    scores, u = additive_scores(query, keys, v)
    found = additive_scores(query, keys, v, exp_of(keys))  # the error of u is relative to 1
    assert_close(found[0], scores, "float32", scale=float(np.abs(v).sum()))
    assert_close(found[1], u, "float32", scale=1)
    dscores = rng.normal(size=(B, T, S)).astype(np.float32)
    check_op(additive_scores_backward, dscores, u, v, factor=2)  # sums of 1023


def test_views(rng):
    query = rng.normal(size=(7, 3, 2)).astype(np.float32).T
    keys, v = rng.normal(size=(2, 5, 14)).astype(np.float32)[..., ::2], rng.normal(size=14).astype(np.float32)[::2]
    check_op(additive_scores, query, keys, v)
    _, u = additive_scores(query, keys, v)
    check_op(additive_scores_backward, rng.normal(size=(5, 3, 2)).astype(np.float32).T, u, v)


def test_by_hand():
    """One unit: tanh(1 + 1) 3 and tanh(1 - 1) 3."""
    scores, u = additive_scores(np.array([[[1.0]]]), np.array([[[1.0], [-1.0]]]), np.array([3.0]))
    assert_close(scores, [[[3 * np.tanh(2), 0]]])
    dquery, dkeys, dv = additive_scores_backward(np.array([[[1.0, 1.0]]]), u, np.array([3.0]))
    slope = 3 * (1 - np.tanh(2) ** 2)
    assert_close(dquery, [[[slope + 3]]])
    assert_close(dkeys, [[[slope], [3]]])
    assert_close(dv, [np.tanh(2)])


def test_large_sums_stay_finite():
    scores, u = additive_scores(np.full((1, 1, 2), 3e38, np.float32), np.zeros((1, 3, 2), np.float32), np.ones(2, "f4"))
    assert (scores == 2).all()
    assert (u == 1).all()


@pytest.mark.parametrize(
    ("query", "key"), [(19.9, 19.9), (-19.9, -19.9), (19.9, -19.9), (25, -24), (-1e30, 1), (np.nan, 1)]
)
def test_with_exponentials_made_before(query, key):
    """Up to 20 they serve; beyond, as for NaN, tanh itself is called."""
    q, k = np.full((1, 2, 3), query, np.float32), np.full((1, 4, 3), key, np.float32)
    wanted = np.tanh(q.astype(np.float64)[:, :, None] + k[:, None])
    found = additive_scores(q, k, np.ones(3, np.float32), exp_of(k))
    assert_close(found[1], wanted, "float32")
    assert_close(found[0], wanted.sum(axis=3), "float32")


def test_exponentials_only_where_they_serve():
    assert exp_of(np.full((1, 1, 1), -21, np.float32)) is None
    assert exp_of(np.zeros((1, 1, 1))) is None
    assert exp_of(np.ones((1, 1, 1), np.float32)) == np.exp(np.float32(2))
    assert exp_of(np.zeros((1, 0, 1), np.float32)).shape == (1, 0, 1)
