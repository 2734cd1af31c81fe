"""Cross-entropy of class probabilities, of other layouts, and with soft capping."""

import numpy as np
import pytest
from contract import check_op
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.gradcheck import gradcheck
from gpulayers.ops.cross_entropy import cross_entropy, cross_entropy_inplace
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap, softcap_backward

float32 = np.float32
IGNORE = -100


def probabilities(rng, *shape):
    t = rng.uniform(0, 1, shape) * rng.choice([0, 1], shape)
    return t / np.maximum(t.sum(axis=-1, keepdims=True), 0.1)


# ------------------------------------------------------------------------------------------------- probabilities


@pytest.mark.parametrize("vocabulary", [1, 2, 33, 1023, 50257])
def test_bodies_agree(vocabulary, rng):
    rows = 3 if vocabulary > 2000 else 200
    logits = rng.normal(0, 3, (rows, vocabulary)).astype(float32)
    targets = probabilities(rng, rows, vocabulary).astype(float32)
    weight = rng.choice([0, 0.5, 2], vocabulary).astype(float32)
    scale = np.array(0.25, float32)
    factor = 2 if vocabulary > 2000 else 1  # sums of 50257 terms
    for offset in (0, -200):
        check_op(soft_cross_entropy, logits + float32(offset), targets, None, None, 0.0, 0.0, False, factor=factor)
    check_op(soft_cross_entropy, logits[::-1], targets[::-1], weight, scale, 0.1, 1e-2, False, factor=factor)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2, "z_loss": 0.1}, {"weight": 1, "softcap": 3.0}])
def test_gradient(reduction, options, rng):
    targets = probabilities(rng, 2, 3, 5)
    if "weight" in options:
        options = {**options, "weight": rng.uniform(0.2, 2, 5)}
    gradcheck(lambda z: cross_entropy(z, targets, reduction=reduction, **options), rng.normal(0, 2, (2, 3, 5)))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 5),
    cols=st.sampled_from([1, 2, 33]),
    smoothing=st.sampled_from([0.0, 0.2, 1.0]),
    z_loss=st.sampled_from([0.0, 0.3]),
    cap=st.sampled_from([None, 5.0]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    dtype=st.sampled_from(["float32", "float16"]),
    inplace=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_certain_probabilities_are_ids(rows, cols, smoothing, z_loss, cap, weighted, reduction, dtype, inplace, seed):
    """One-hot rows give what ids give, but that the mean of weighted ones is over the rows; nothing else is written.

    With weights and smoothing PyTorch's two formulas differ, and so do ours: w_y (1 - s) + s w_c / V both, here equal.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 4, (rows, cols)).astype(dtype)
    ids = rng.integers(0, cols, rows)
    targets = np.eye(cols, dtype=dtype)[ids]
    options = {"label_smoothing": smoothing, "z_loss": z_loss, "softcap": cap, "reduction": reduction}
    weight = rng.uniform(0.5, 2, cols).astype(float32) if weighted and reduction != "mean" else None
    exact, exact_gradient = cross_entropy(
        logits.astype(np.float64), ids, weight=None if weight is None else weight.astype(np.float64), **options
    )
    before = logits.copy(), targets.copy()
    call = cross_entropy_inplace if inplace else cross_entropy
    memory = logits.copy()
    loss, gradient = call(memory, targets, weight=weight, **options)
    assert (gradient is memory or memory.size == 0 or np.shares_memory(gradient, memory)) == inplace or rows == 0
    assert inplace or np.array_equal(memory, before[0])
    assert np.array_equal(targets, before[1])
    assert (loss.dtype, gradient.dtype) == (float32, logits.dtype)
    assert np.allclose(loss, exact, rtol=3e-6, atol=3e-6)
    assert np.allclose(gradient, exact_gradient, rtol=2e-3 if dtype == "float16" else 3e-6, atol=2e-6)


def test_a_class_of_probability_zero_costs_nothing():
    for dtype in (float32, np.float64):
        loss, gradient = cross_entropy(np.array([[0, -np.inf, 0]], dtype), np.array([[0.5, 0, 0.5]], dtype))
        assert loss == pytest.approx(np.log(2))
        assert gradient.tolist() == [[0, 0, 0]]
        loss, _ = cross_entropy(np.array([[0, -np.inf, 0]], dtype), np.array([[0.5, 0.5, 0]], dtype))
        assert loss == np.inf


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_bad_row_stays_alone(poison):
    for dtype in (float32, np.float64):
        logits = np.array([[poison, 2, 3], [1, 2, 3]], dtype)
        losses, gradient = cross_entropy(logits, np.array([[0, 1, 0], [1, 0, 0]], dtype), reduction="none")
        assert np.isnan(losses).tolist() == [True, False]
        assert np.isnan(gradient[0]).any()
        assert np.isfinite(gradient[1]).all()
        targets = np.array([[0, np.nan, 0], [1, 0, 0]], dtype)
        losses, gradient = cross_entropy(np.array([[1, 2, 3], [1, 2, 3]], dtype), targets, reduction="none")
        assert np.isnan(losses).tolist() == [True, False]
        assert np.isnan(gradient[0]).all()


def test_mean_of_weighted_probabilities_is_over_rows():
    """As PyTorch has it, unlike the mean of weighted ids."""
    loss, _ = cross_entropy(np.zeros((2, 2)), np.eye(2), weight=np.array([1.0, 3.0]))
    assert loss == pytest.approx(2 * np.log(2))
    loss, _ = cross_entropy(np.zeros((2, 2)), np.arange(2), weight=np.array([1.0, 3.0]))
    assert loss == pytest.approx(np.log(2))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (3, 0)])
def test_nothing(reduction, shape):
    loss, gradient = cross_entropy(np.zeros(shape, float32), np.zeros(shape, float32), reduction=reduction, z_loss=0.1)
    assert not np.any(loss)
    assert np.shape(loss) == (shape[:-1] if reduction == "none" else ())
    assert gradient.shape == shape


# ------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_axis(axis, reduction, rng):
    logits = rng.normal(size=(4, 3, 5)).astype(float32)
    moved = np.ascontiguousarray(np.moveaxis(logits, axis, -1))
    ids = rng.integers(0, logits.shape[axis], moved.shape[:-1])
    ids[0, 0] = IGNORE
    soft = probabilities(rng, *moved.shape).astype(float32)
    for targets, there in ((ids, ids), (soft, np.moveaxis(soft, -1, axis))):
        loss, gradient = cross_entropy(logits, there, axis=axis, reduction=reduction, label_smoothing=0.1)
        wanted, wanted_gradient = cross_entropy(moved, targets, reduction=reduction, label_smoothing=0.1)
        assert gradient.shape == logits.shape
        assert np.array_equal(loss, wanted)
        assert np.array_equal(gradient, np.moveaxis(wanted_gradient, -1, axis))


def test_a_layout_that_was_meant_otherwise(rng):
    logits = np.zeros((2, 3, 4, 5), float32)
    with pytest.raises(ValueError, match=r"need targets \(2, 3, 4\), got \(2, 4, 5\), which would fit axis=1"):
        cross_entropy(logits, np.zeros((2, 4, 5), int))
    wrong: tuple = (4, -5, 1.0, True)
    for axis in wrong:
        with pytest.raises(ValueError, match=r"cross_entropy: axis must be an integer in -4\.\.3 here, got"):
            cross_entropy(logits, np.zeros((2, 4, 5), int), axis=axis)


# ------------------------------------------------------------------------------------------------- soft capping


@pytest.mark.parametrize("size", [0, 1, 1023, 70_000])
def test_softcap_bodies_agree(size, rng):
    x, dy = rng.normal(0, 60, size).astype(float32), rng.normal(size=size).astype(float32)
    dy[::7] = 0
    check_op(softcap, x[::-1], 30.0)
    check_op(softcap_backward, x, dy[::-1], 30.0, False)
    memory = x.copy()
    assert softcap_backward(memory, dy, 30.0, True) is memory
    assert np.array_equal(memory, softcap_backward(x, dy, 30.0, False))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_softcap_gradient(reduction, rng):
    targets = np.array([[0, IGNORE, 4], [3, 3, 1]])
    options = {"softcap": 4.0, "label_smoothing": 0.1, "z_loss": 0.05, "reduction": reduction}
    gradcheck(lambda z: cross_entropy(z, targets, **options), rng.normal(0, 4, (2, 3, 5)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("call", [cross_entropy, cross_entropy_inplace])
def test_softcap_is_cap_tanh(dtype, call, rng):
    logits, targets = rng.normal(0, 50, (6, 7)).astype(dtype), rng.integers(0, 7, 6)
    exact = 30 * np.tanh(logits.astype(np.float64) / 30)
    wanted, through = cross_entropy(exact, targets)
    loss, gradient = call(logits.copy(), targets, softcap=30.0)
    assert loss == pytest.approx(wanted, rel=2e-6)
    assert gradient.dtype == dtype
    slope = through * (1 - (exact / 30) ** 2)
    assert np.allclose(gradient.astype(np.float64), slope, rtol=1e-3 if dtype == "float16" else 3e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_softcap_of_infinities(dtype):
    """Capped, an infinity is the cap; NaN is NaN, but for an ignored row, which is 0."""
    logits = np.array([[np.inf, -np.inf, 0], [np.nan, 0, 0], [np.nan, 0, 0]], dtype)
    losses, gradient = cross_entropy(logits, np.array([1, 0, IGNORE]), softcap=5.0, reduction="none")
    assert losses[0] == pytest.approx(10 + np.log(1 + np.exp(-5) + np.exp(-10)))
    assert gradient[0, :2].tolist() == [0, 0]
    assert np.isnan(losses[1])
    assert np.isnan(gradient[1]).all()
    assert losses[2] == 0
    assert not gradient[2].any()


# ------------------------------------------------------------------------------------------------- refusals

LOGITS, SOFT = np.zeros((2, 3), float32), np.full((2, 3), 1 / 3, float32)


@pytest.mark.parametrize("call", [cross_entropy, cross_entropy_inplace])
@pytest.mark.parametrize(
    ("targets", "options", "error", "message"),
    [
        (SOFT[:, :2], {}, TypeError, r"takes integer targets, got float32 \(2, 2\): floating ones are class prob"),
        (SOFT.astype(np.float64), {}, TypeError, "probabilities of the dtype of logits, float32, got float64"),
        (
            SOFT,
            {"ignore_index": 0},
            ValueError,
            "ignore_index is of class ids, the targets are probabilities: got 0",
        ),
        (SOFT, {"softcap": 0}, ValueError, "softcap must be above 0, got 0"),
        (SOFT, {"softcap": np.nan}, ValueError, "softcap must be above 0, got nan"),
        (SOFT, {"softcap": np.inf}, ValueError, "softcap must be finite, got inf: None caps nothing"),
        (SOFT, {"scale": 2.0}, ValueError, "scale must be a scalar array, got float"),
        (SOFT, {"weight": np.ones(2, float32)}, ValueError, r"floating weight \(3,\), got float32 \(2,\)"),
    ],
)
def test_refusals(targets, options, error, message, call):
    with pytest.raises(error, match=message):
        call(LOGITS.copy(), targets, **options)
