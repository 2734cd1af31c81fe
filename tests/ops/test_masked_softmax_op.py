import numpy as np
import pytest
from contract import check_op
from tolerances import assert_close

from gpulayers.masks import padding_mask
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (2, 1, 7, 3), (1, 2, 70, 1023), (0, 2, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0)]


def masks(shape, rng):
    B, H, T, S = shape
    yield None
    yield padding_mask(lengths=rng.integers(0, S + 1, B), size=S)
    yield rng.random((B, H, T, S)) < 0.5
    yield rng.random((1, H, 1, S)) < 0.5
    yield np.ones((1, 1, 1, 1), bool)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_bodies_agree(shape, causal, rng):
    scores, dweights = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    for hide in masks(shape, rng):
        check_op(masked_softmax, scores, hide, 0.3, causal)
        weights = masked_softmax.reference(scores, hide, 0.3, causal)
        check_op(masked_softmax_backward, dweights, weights, hide, 0.3, causal, factor=2)  # sums over 1023 keys


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_soft_cap(shape, softcap, rng):
    scores = rng.normal(0, 3, shape).astype(np.float32)
    for hide in masks(shape, rng):
        check_op(masked_softmax, scores, hide, 0.3, False, softcap)
        check_op(masked_softmax, scores, hide, 3.0, True, softcap, factor=3)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_soft_cap_by_hand(body):
    """cap tanh(scale score / cap), then the softmax: of 2 tanh(3 / 2) = 1.8102965 and 0; what is hidden stays out."""
    scores = np.array([6, 0, np.nan], np.float32).reshape(1, 1, 1, 3)
    found = masked_softmax.bodies[body](scores, np.array([False, False, True]), 0.5, False, 2.0)
    assert_close(found.ravel(), np.array([0.8593977, 0.1406023, 0]))


def test_strided_views(rng):
    scores = rng.normal(size=(7, 5, 3, 2)).astype(np.float32).T
    check_op(masked_softmax, scores, None, 1.0, True)
    check_op(masked_softmax_backward, scores[::-1], masked_softmax(scores, None, 1.0, True), None, 1.0, True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_hidden_entries_never_matter(body, poison, rng):
    scores, dweights = rng.normal(size=(2, 2, 2, 4, 6)).astype(np.float32)
    hide = rng.random((2, 1, 4, 6)) < 0.4
    hide[1, :, 2] = True
    hidden = np.broadcast_to(hide | ~np.tri(4, 6, 2, dtype=bool), scores.shape)
    clean = masked_softmax.bodies[body](scores, hide, 2.0, True)
    clean_back = masked_softmax_backward.bodies[body](dweights, clean, hide, 2.0, True)
    bad, bad_back = np.where(hidden, np.float32(poison), [scores, dweights])
    weights = masked_softmax.bodies[body](bad, hide, 2.0, True)
    back = masked_softmax_backward.bodies[body](bad_back, weights, hide, 2.0, True)
    assert np.array_equal(weights, clean)
    assert np.array_equal(back, clean_back)
    assert not weights[hidden].any()
    assert not back[hidden].any()
    assert not weights[1, :, 2].any()
    sums = weights.sum(-1)
    assert np.allclose(sums[sums > 0], 1)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_cross_terms_of_the_derivative(body):
    """Reported case H04 (wkcn/mobula #3): the derivative of softmax is not its diagonal."""
    x = np.array([1, 2, 3], np.float32).reshape(1, 1, 1, 3)
    weights = masked_softmax.bodies[body](x, None, 1.0, False)
    for dy, wanted in (
        ([1, 0, 0], [0.0819251, -0.0220330, -0.0598920]),
        ([0.5, -1, 2], [-0.0567885, -0.5214598, 0.5782482]),
        ([1, 1, 1], [0, 0, 0]),
    ):
        dy = np.array(dy, np.float32).reshape(1, 1, 1, 3)
        found = masked_softmax_backward.bodies[body](dy, weights, None, 1.0, False)
        assert np.allclose(found.ravel(), wanted, atol=1e-6)
