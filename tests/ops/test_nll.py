"""nll_loss: bodies, gradients, layouts, ignored and bad targets."""

import numpy as np
import pytest
from contract import check_op
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.gradcheck import gradcheck
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.ops.nll import nll, nll_loss
from gpulayers.ops.softmax import log_softmax

float32 = np.float32
IGNORE = -100


@pytest.mark.parametrize("shape", [(0, 3), (4, 1), (7, 33), (3, 50257), (2, 0)])
def test_bodies_agree(shape, rng):
    rows, cols = shape
    targets = np.where(rng.random(rows) < 0.3, IGNORE, rng.integers(0, max(cols, 1), rows))
    x, weight = rng.normal(-3, 1, shape).astype(float32), rng.choice([0, 0.5, 2], cols).astype(float32)
    check_op(nll, x, targets, None, None, IGNORE)
    check_op(nll, x[::-1], targets, weight, np.array(0.5, float32), IGNORE)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient(reduction, weighted, rng):
    targets, weight = np.array([[0, IGNORE, 4], [3, 3, 1]]), rng.uniform(0.2, 2, 5) if weighted else None
    gradcheck(lambda x: nll_loss(x, targets, weight, reduction=reduction), rng.normal(size=(2, 3, 5)))


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(0, 6),
    cols=st.sampled_from([1, 2, 33]),
    dtype=st.sampled_from(["float32", "float16"]),
    ids=st.sampled_from(["int8", "int32", "uint8", "uint64"]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_call_is_cross_entropy_of_log_softmax(rows, cols, dtype, ids, weighted, reduction, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, cols)).astype(float32)
    ignore_index = 101 if ids.startswith("u") else IGNORE
    targets = np.where(rng.random(rows) < 0.3, ignore_index, rng.integers(0, cols, rows)).astype(ids)
    weight = rng.choice([0, 0.5, 2], cols).astype(float32) if weighted else None
    options = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    x = log_softmax(logits).astype(dtype)
    loss, dx = nll_loss(x, targets, **options)
    wanted, _ = cross_entropy(logits, targets, **options)
    assert (loss.dtype, dx.dtype, dx.shape) == (float32, x.dtype, x.shape)
    assert np.allclose(loss, wanted, rtol=3e-3 if dtype == "float16" else 3e-6, atol=1e-5)
    assert (np.count_nonzero(dx, axis=1) <= 1).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axis(axis, rng):
    x = rng.normal(size=(4, 3, 5))
    moved = np.moveaxis(x, axis, -1)
    targets = rng.integers(0, x.shape[axis], moved.shape[:-1])
    loss, dx = nll_loss(x, targets, axis=axis)
    wanted, wanted_dx = nll_loss(np.ascontiguousarray(moved), targets)
    assert loss == wanted
    assert np.array_equal(dx, np.moveaxis(wanted_dx, -1, axis))


def test_worked_numbers():
    x = np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375]], float32))
    losses, dx = nll_loss(x, np.array([1, 0]), reduction="none")
    assert losses == pytest.approx([np.log(4), np.log(8)])
    assert dx.tolist() == [[0, -1, 0], [-1, 0, 0]]
    loss, dx = nll_loss(x, np.array([1, 0]), np.array([3, 1, 0], float32))
    assert loss == pytest.approx((np.log(4) + 3 * np.log(8)) / 4)
    assert dx.tolist() == [[0, -0.25, 0], [-0.75, 0, 0]]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nothing_counts(poison, dtype):
    x = np.full((2, 3), poison, dtype)
    for weight, targets in ((None, [IGNORE, IGNORE]), (np.zeros(3, dtype), [0, 1])):
        for reduction in ("mean", "sum", "none"):
            loss, dx = nll_loss(x, np.array(targets), weight, reduction=reduction)
            assert not np.any(loss)
            assert not dx.any()


def test_nan_is_not_hidden_and_an_impossible_class_is_infinite():
    x = np.array([[np.nan, 0], [-np.inf, 0], [-1, 0]], float32)
    losses, _ = nll_loss(x, np.array([0, 0, 0]), reduction="none")
    assert np.isnan(losses[0])
    assert losses[1:].tolist() == [np.inf, 1]


def test_scale_is_of_the_gradient_alone(rng):
    x, targets = rng.normal(size=(3, 4)).astype(float32), np.array([0, 3, 1])
    for reduction in ("mean", "sum", "none"):
        loss, dx = nll_loss(x, targets, reduction=reduction)
        scaled_loss, scaled = nll_loss(x, targets, reduction=reduction, scale=np.array(1024, float32))
        assert np.array_equal(loss, scaled_loss)
        assert np.array_equal(1024 * dx, scaled)


@pytest.mark.parametrize("target", [3, -1, 1 << 40])
def test_bodies_never_read_elsewhere(target):
    losses, dx = nll.reference(np.ones((2, 3), float32), np.array([target, 0]), None, None, IGNORE)
    assert np.isnan(losses).tolist() == [True, False]
    assert dx.tolist() == [[0, 0, 0], [-1, 0, 0]]


X, IDS = np.zeros((2, 3), float32), np.array([0, 1])


@pytest.mark.parametrize(
    ("x", "target", "options", "error", "message"),
    [
        (X.astype(int), IDS, {}, TypeError, "floating log-probabilities of shape .* got int64"),
        (X, IDS.astype(float32), {}, TypeError, "nll_loss takes integer targets, got float32"),
        (X, IDS[:1], {}, ValueError, r"classes along axis 1 need targets \(2,\), got \(1,\)"),
        (X, IDS, {"axis": 2}, ValueError, r"axis must be an integer in -2\.\.1 here, got 2"),
        (X, IDS + 2, {}, ValueError, r"nll_loss: target 3 in row 1 is outside 0\.\.2"),
        (X, IDS, {"weight": np.ones(2)}, ValueError, r"floating weight \(3,\), got float64 \(2,\)"),
        (X, IDS, {"reduction": "avg"}, ValueError, "one of mean, sum, none, got 'avg'"),
        (X, IDS, {"scale": 1.0}, ValueError, "scale must be a scalar array, got float"),
        ([[0.5]], IDS, {}, TypeError, "expected an array"),
    ],
)
def test_refusals(x, target, options, error, message):
    with pytest.raises(error, match=message):
        nll_loss(x, target, **options)
