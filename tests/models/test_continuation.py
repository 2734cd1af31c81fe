"""A GPT under the decoders: greedy, sampling and beam search after prompts."""

import itertools

import numpy as np
import pytest

from gpulayers.decoding import beam_search, greedy_decode, sample_decode
from gpulayers.models.continuation import Continuation
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.training.generate import generate

PROMPTS = np.array([[-1, -1, 3], [1, 4, 2], [-1, 0, 0]])


@pytest.fixture(scope="module")
def model():
    return GPT(GPTConfig(vocab=6, context=8, layers=2, heads=2, dim=8), seed=7, dtype="float64")


def score(model, prompt, ids):
    """log p of `ids` after `prompt`, by a whole pass."""
    z = model(np.concatenate([prompt, ids])[None])[0, len(prompt) - 1 : -1]
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return log_p[np.arange(len(ids)), ids].sum()


def prompts():
    return [row[row >= 0] for row in PROMPTS]


def test_greedy_is_generate_at_temperature_0(model):
    ids, scores = greedy_decode(Continuation(model, 5), PROMPTS)
    for row, prompt, found in zip(ids, prompts(), scores, strict=True):
        assert row.tolist() == generate(model, prompt, 5, temperature=0).tolist()
        assert found == pytest.approx(score(model, prompt, row), abs=1e-12)
    width_1 = beam_search(Continuation(model, 5), PROMPTS, width=1)
    assert np.array_equal(width_1.ids, ids)
    first = sample_decode(Continuation(model, 5), PROMPTS[1:2], temperature=0.7, seed=3).ids[0]
    assert first.tolist() == generate(model, PROMPTS[1], 5, temperature=0.7, seed=3).tolist()


def test_a_wide_beam_finds_the_best_of_all(model):
    ids, scores = beam_search(Continuation(model, 3), PROMPTS[1:2], width=36)
    for row, prompt, found in zip(ids, prompts()[1:2], scores, strict=True):
        every = {c: score(model, prompt, np.array(c)) for c in itertools.product(range(6), repeat=3)}
        best = max(every, key=lambda c: every[c])
        assert tuple(row.tolist()) == best
        assert found == pytest.approx(every[best], abs=1e-12)


def test_an_end_is_searched_for(model):
    ids, scores = beam_search(Continuation(model, 3, end=2), PROMPTS, width=36)
    for row, prompt, found in zip(ids, prompts(), scores, strict=True):
        bodies = [c for n in range(3) for c in itertools.product((0, 1, 3, 4, 5), repeat=n)]
        every = {(*c, 2): score(model, prompt, np.array([*c, 2])) for c in bodies}
        best = max(every, key=lambda c: every[c])
        assert tuple(i for i in row.tolist() if i >= 0) == best
        assert found == pytest.approx(every[best], abs=1e-12)


def test_bad_arguments_are_one_sentence(model):
    for prompt in (np.array([[-1, -1]]), np.zeros((1, 0), np.int64)):
        with pytest.raises(ValueError, match="prompt 0 is empty; give at least one token"):
            greedy_decode(Continuation(model, 3), prompt)
    with pytest.raises(ValueError, match="-1 pads a prompt in front"):
        greedy_decode(Continuation(model, 3), np.array([[1, -1, 2]]))
    with pytest.raises(ValueError, match="prompts of 3 ids and 7 more do not fit into the context of 8: 1 too many"):
        greedy_decode(Continuation(model, 7), PROMPTS)
    with pytest.raises(ValueError, match=r"end must be an id in 0..5, got 6"):
        Continuation(model, 3, end=6)
    with pytest.raises(ValueError, match="longest must be at least 1, got 0"):
        Continuation(model, 0)
