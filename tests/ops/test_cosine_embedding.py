"""cosine_embedding_loss: bodies, both gradients, zeros, NaN, what is refused."""

import numpy as np
import pytest
from contract import check_op
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.gradcheck import gradcheck
from gpulayers.ops.cosine_embedding import cosine_embedding, cosine_embedding_loss

float32 = np.float32


@pytest.mark.parametrize("shape", [(0, 3), (4, 2), (7, 33), (2, 50257), (3, 0)])
def test_bodies_agree(shape, rng):
    x1, x2 = rng.normal(0.3, 1, (2, *shape)).astype(float32)
    target = rng.choice([-1, 1], shape[0]).astype(float32)
    check_op(cosine_embedding, x1, x2[::-1], target, -0.5, 0.5, np.array(3, float32))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 5)])
def test_gradient(reduction, shape, rng):
    target = np.asarray(rng.choice([-1, 1], shape[:-1]))

    def loss(x1, x2):
        return cosine_embedding_loss(x1, x2, target, margin=-0.4, reduction=reduction)

    gradcheck(loss, *rng.normal(size=(2, *shape)))


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 6),
    cols=st.sampled_from([1, 2, 33]),
    dtype=st.sampled_from(["float32", "float16"]),
    integers=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_call(rows, cols, dtype, integers, reduction, seed):
    rng = np.random.default_rng(seed)
    x1, x2 = rng.normal(size=(2, rows, cols)).astype(dtype)
    target = rng.choice([-1, 1], rows).astype(np.int8 if integers else dtype)
    before = x1.copy(), x2.copy()
    loss, gradients = cosine_embedding_loss(x1, x2, target, reduction=reduction)
    exact, wide = cosine_embedding_loss(x1.astype(float), x2.astype(float), target.astype(float), reduction=reduction)
    assert loss.dtype == float32
    assert np.allclose(loss, exact, rtol=2e-6, atol=1e-6)
    for x, was, d, d64 in zip((x1, x2), before, gradients, wide, strict=True):
        assert np.array_equal(x, was)
        assert (d.dtype, d.shape) == (x.dtype, x.shape)
        terms = max(1, (1 / np.linalg.norm(was.astype(float), axis=1)).max(initial=0))  # their size; they may cancel
        assert np.allclose(d, d64, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-6 * terms)


def test_worked_numbers():
    x1, x2 = np.array([[1.0, 0], [3, 4], [1, 0]]), np.array([[0.0, 2], [6, 8], [1, 1]])
    losses, (dx1, dx2) = cosine_embedding_loss(x1, x2, np.array([1, -1, 1]), margin=0.25, reduction="none")
    assert losses == pytest.approx([1, 0.75, 1 - np.sqrt(0.5)])
    assert dx1[0] == pytest.approx([0, -1])
    assert dx2[0] == pytest.approx([-0.5, 0])
    assert dx1[1] == pytest.approx([0, 0], abs=1e-12)  # cos is largest where the directions agree
    far, (d, _) = cosine_embedding_loss(x1[:1], x2[:1], np.array([-1]), margin=0.5)
    assert (far, d.tolist()) == (0, [[0, 0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_degenerate(dtype):
    """Zeros have cosine 0; large vectors do not overflow; NaN stays in its row; no rows, no loss."""
    x = np.array([[0, 0], [1e18, 1e18], [np.nan, 1], [1, 1]], dtype)
    losses, gradients = cosine_embedding_loss(x, x[::-1].copy()[::-1], np.ones(4, int), reduction="none")
    assert losses[:2] == pytest.approx([1, 0], abs=1e-6)
    assert np.isnan(losses).tolist() == [False, False, True, False]
    for d in gradients:
        assert np.isnan(d).any(axis=1).tolist() == [False, False, True, False]
    for reduction in ("mean", "sum", "none"):
        loss, (d, _) = cosine_embedding_loss(x[:0], x[:0], np.ones(0, dtype), reduction=reduction)
        assert not np.any(loss)
        assert d.shape == (0, 2)


def test_scale_is_of_the_gradients_alone(rng):
    x1, x2 = rng.normal(size=(2, 3, 4)).astype(float32)
    target = np.array([1, -1, 1])
    loss, gradients = cosine_embedding_loss(x1, x2, target, margin=-0.9)
    scaled_loss, scaled = cosine_embedding_loss(x1, x2, target, margin=-0.9, scale=np.array(1024, float32))
    assert loss == scaled_loss
    for a, b in zip(gradients, scaled, strict=True):
        assert np.array_equal(1024 * a, b)


X, ONES = np.ones((2, 3), float32), np.array([1, -1])


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((X, X.astype(float), ONES), {}, TypeError, "one floating dtype, got float32 and float64"),
        ((X, X[:1], ONES), {}, ValueError, r"one shape \(..., D\), got \(2, 3\) and \(1, 3\)"),
        ((X, X, ONES[:1]), {}, ValueError, r"inputs \(2, 3\) need targets \(2,\), got \(1,\)"),
        ((X, X, np.array([1, 0])), {}, ValueError, r"takes targets that are 1 or -1, got 0\.0 at 1"),
        ((X, X, np.array([True, False])), {}, TypeError, "floating or signed integers, got bool"),
        ((X, X, ONES), {"margin": np.nan}, ValueError, "margin must be a number, got nan"),
        ((X, X, ONES), {"reduction": "avg"}, ValueError, "one of mean, sum, none, got 'avg'"),
        ((X, X, ONES), {"scale": 1.0}, ValueError, "scale must be a scalar array, got float"),
    ],
)
def test_refusals(args, options, error, message):
    with pytest.raises(error, match=f"cosine_embedding_loss.*{message}"):
        cosine_embedding_loss(*args, **options)
