import numpy as np
import pytest

from gpulayers.sampling import Sampling, pick, probabilities, uniform


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


def test_each_text_has_draws_of_its_own():
    rows = [[uniform(7, i, row) for i in range(100)] for row in range(3)]
    assert rows[0] == [uniform(7, i) for i in range(100)]
    assert len({u for row in rows for u in row}) == 300
