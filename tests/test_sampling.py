import numpy as np
import pytest

from gpulayers.sampling import Sampling, penalised, pick, probabilities, uniform


def test_probabilities():
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    assert np.allclose(probabilities(logits, Sampling()), [0.1, 0.4, 0.2, 0.3])
    assert np.allclose(probabilities(logits, Sampling(0.5)), np.array([1, 16, 4, 9]) / 30)
    assert np.allclose(probabilities(logits, Sampling(top_k=2)), [0, 4 / 7, 0, 3 / 7])
    assert np.allclose(probabilities(logits, Sampling(top_p=0.6)), [0, 4 / 7, 0, 3 / 7])
    assert np.allclose(probabilities(logits, Sampling(top_p=1e-9)), [0, 1, 0, 0])
    assert np.allclose(probabilities(logits, Sampling(top_p=1.0)), [0.1, 0.4, 0.2, 0.3])
    assert np.allclose(probabilities(logits, Sampling(top_k=3, top_p=0.5)), [0, 4 / 7, 0, 3 / 7])
    assert np.allclose(probabilities(logits, Sampling(top_k=99)), [0.1, 0.4, 0.2, 0.3])


def test_of_equal_tokens_exactly_k_are_kept():
    assert np.count_nonzero(probabilities(np.zeros(9, np.float32), Sampling(top_k=4))) == 4


def test_draws_follow_the_probabilities():
    logits = np.log(np.array([0.1, 0.4, 1e-30, 0.5], np.float32))
    counts = np.bincount([pick(logits, i, Sampling(seed=1)) for i in range(4000)], minlength=4) / 4000
    assert np.allclose(counts, [0.1, 0.4, 0, 0.5], atol=0.03)


def test_uniform_depends_on_seed_and_index_alone():
    draws = [uniform(7, i) for i in range(1000)]
    assert draws == [uniform(7, i) for i in range(1000)]
    assert all(0 < u < 1 for u in draws)
    assert len(set(draws)) == 1000
    assert abs(np.mean(draws) - 0.5) < 0.03


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad):
    with pytest.raises(FloatingPointError, match="not finite"):
        pick(np.array([1.0, bad]), 0, Sampling())


def test_repetition_penalty():
    """The first two lines are what transformers 5.24 gives: RepetitionPenaltyLogitsProcessor(1.3) of ids 0, 1, 1, 4, 5,
    then temperature 0.7, the 4 largest, and those that reach 0.9."""
    logits = np.array([1.5, -0.5, 0.25, -2.0, 3.0, 0.0], np.float32)
    found = penalised(logits, np.array([0, 1, 1, 4, 5]), 1.3)
    assert np.allclose(found, [1.1538461446762085, -0.6499999761581421, 0.25, -2.0, 2.307692289352417, 0.0], 1e-7)
    expected = [0.16133185063974384, 0, 0, 0, 0.8386681493602561, 0]
    assert np.allclose(probabilities(found, Sampling(0.7, 4, 0.9)), expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert logits[0] == 1.5  # the model's own array is not written
    seen = np.array([4])
    assert pick(logits, 0, Sampling(0.0, repetition_penalty=3.0), seen=seen) == 0
    assert pick(logits, 0, Sampling(0.0, repetition_penalty=1.0), seen=seen) == 4
    with pytest.raises(ValueError, match=r"repetition_penalty must be at least 1e-06 and at most 1000000.0, got 0.0"):
        Sampling(repetition_penalty=0.0).checked()


@pytest.mark.parametrize("penalty", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_hardest_penalties(penalty, dtype):
    """One of 1e-300 made a logit infinite, and the drawn id was the size of the vocabulary."""
    logits, seen = np.array([20.0, -20.0, 1.0], dtype), np.array([0, 1])
    assert 0 <= pick(logits, 0, Sampling(repetition_penalty=penalty).checked(), seen=seen) < 3
    for wrong in (1e-300, 1e300):
        with pytest.raises(ValueError, match="repetition_penalty must be at least"):
            Sampling(repetition_penalty=wrong).checked()


@pytest.mark.parametrize("size", [5, 300, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_the_cuts_are_those_of_a_full_sort(size, spread, rng):
    """Only as much is sorted as is needed; ties go to the lower id."""
    logits = np.round(rng.normal(size=size) * spread, 2).astype(np.float32)
    for top_k, top_p in ((None, 0.9), (None, 0.999), (3, None), (size - 1, 0.5), (None, 1e-6)):
        z = logits.astype(np.float64)
        order = np.argsort(-z, kind="stable")
        z[order[top_k:] if top_k else []] = -np.inf
        p = np.exp(z) / np.exp(z).sum()
        if top_p:
            p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
        found = probabilities(logits, Sampling(1.0, top_k, top_p))
        assert np.array_equal(found > 0, p > 0)
        assert np.allclose(found, p / p.sum())


def test_each_text_has_draws_of_its_own():
    rows = [[uniform(7, i, row) for i in range(100)] for row in range(3)]
    assert rows[0] == [uniform(7, i) for i in range(100)]
    assert len({u for row in rows for u in row}) == 300
