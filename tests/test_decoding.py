import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.decoding import beam_search, greedy_decode, sample_decode, take_rows
from gpulayers.sampling import Sampling, pick

PAD, BOS, EOS = 0, 1, 2
HALVES: Any = 2.5  # what is no integer


class State(NamedTuple):
    source: np.ndarray
    parts: list


class Random:
    """Its logits hang on the source and on every id before, by a random function of them."""

    def __init__(self, seed=0, vocab=7, longest=6, spread=1.0, device="numpy") -> None:
        self.config = SimpleNamespace(pad=PAD, bos=BOS, eos=EOS, longest=longest)
        self.seed, self.vocab, self.spread, self.device = seed, vocab, spread, device
        self.fed = []

    def start(self, source):
        return State(source, [None, (np.zeros((len(source), 0), np.int64), 0)])

    def step(self, ids, state):
        prefix, length = state.parts[1]
        assert gl.device_of(ids) == gl.device_of(state.source)
        assert ids.shape == (len(state.source),) == (len(prefix),)
        ids, source = gl.to_numpy(ids), gl.to_numpy(state.source)
        prefix = np.concatenate([prefix, ids[:, None]], axis=1)
        assert prefix.shape[1] == length + 1 <= self.config.longest
        self.fed.append(prefix.tolist())
        logits = [self.logits(s, p) for s, p in zip(source.tolist(), prefix.tolist(), strict=True)]
        logits = np.array(logits, np.float32).reshape(len(prefix), self.vocab)
        return gl.to_device(logits, self.device), State(state.source, [None, (prefix, length + 1)])

    def logits(self, source, prefix):
        return np.random.default_rng([self.seed, *source, 99, *prefix]).normal(size=self.vocab) * self.spread

    def log_p(self, source, prefix):
        """(V,), -inf where the decoders may not go."""
        z = np.float32(self.logits(source, prefix)).astype(np.float64)
        z = z - np.log(np.exp(z).sum())
        z[[PAD, BOS]] = -np.inf
        return z


class Table(Random):
    """Logits by the prefix (without bos), from a dict of probabilities."""

    def __init__(self, table, vocab=6, longest=6) -> None:
        super().__init__(vocab=vocab, longest=longest)
        self.table = table

    def logits(self, source, prefix):
        p = np.full(self.vocab, 1e-30)
        for token, value in self.table.get(tuple(prefix[1:]), {EOS: 1.0}).items():
            p[token] = value
        return np.log(p)


SOURCE = np.array([[5, 6, 2], [3, 2, 0], [4, 4, 2], [6, 2, 0]])


def score(model, source, ids):
    total, prefix = 0.0, [BOS]
    for token in ids:
        if token == PAD:
            break
        total += model.log_p(source, prefix)[token]
        prefix.append(token)
    return total


def exhaustive(model, source, alpha):
    """The best of all targets that end within `longest`."""
    best = (-np.inf, [])
    for length in range(model.config.longest):
        for body in itertools.product(range(3, model.vocab), repeat=length):
            ids = [*body, EOS]
            best = max(best, (score(model, source, ids) / ((5 + len(ids)) / 6) ** alpha, ids))
    return best


# ------------------------------------------------------------------------------------------------- greedy


def test_greedy_takes_the_likeliest_and_ends_each_row_at_eos():
    model = Random(spread=3)
    ids, scores = greedy_decode(model, SOURCE)
    assert ids.dtype == np.int64
    assert scores.dtype == np.float64
    lengths = set()
    for source, row, found in zip(SOURCE.tolist(), ids.tolist(), scores, strict=True):
        prefix = [BOS]
        while prefix[-1] != EOS and len(prefix) <= 6:
            prefix.append(int(model.log_p(source, prefix).argmax()))
        assert row == prefix[1:] + [PAD] * (ids.shape[1] - len(prefix) + 1)
        assert found == pytest.approx(score(model, source, row))
        lengths.add(len(prefix))
    assert len(lengths) > 1
    assert len(model.fed[-1]) < len(SOURCE)  # rows that are finished are not computed any further


def test_rows_do_not_touch_each_other():
    ids, scores = greedy_decode(Random(3), SOURCE)
    for i in range(len(SOURCE)):
        alone = greedy_decode(Random(3), SOURCE[i : i + 1])
        assert alone.ids.tolist() == [[t for t in ids[i].tolist() if t != PAD]]
        assert alone.scores == scores[i]


def test_longest_cuts_off():
    never_ends = Table({(3,) * n: {3: 1.0} for n in range(9)}, longest=9)
    assert greedy_decode(never_ends, SOURCE[:1]).ids.tolist() == [[3] * 9]
    assert greedy_decode(never_ends, SOURCE[:1], longest=2).ids.tolist() == [[3, 3]]
    assert beam_search(never_ends, SOURCE[:1], longest=1, width=1).ids.tolist() == [[3]]


def test_pad_and_bos_are_never_chosen():
    table = Table({(): {PAD: 0.5, BOS: 0.3, 4: 0.2}, (4,): {BOS: 0.9, EOS: 0.1}})
    for decode in (greedy_decode, sample_decode, beam_search):
        assert decode(table, SOURCE[:1]).ids.tolist() == [[4, EOS]]
    assert greedy_decode(table, SOURCE[:1]).scores == pytest.approx(np.log(0.2 * 0.1))


@pytest.mark.parametrize("decode", [greedy_decode, sample_decode, beam_search])
def test_no_source_at_all(decode):
    ids, scores = decode(Random(), np.zeros((0, 3), np.int64))
    assert (ids.shape, scores.shape, ids.dtype) == ((0, 0), (0,), np.int64)


# ------------------------------------------------------------------------------------------------- sampling


def test_samples_are_drawn_row_by_row_from_their_own_bits():
    model, sampling = Random(1), Sampling(0.7, 3, 0.9, 5)
    ids, scores = sample_decode(model, SOURCE, temperature=0.7, top_k=3, top_p=0.9, seed=5)
    for row, (source, found) in enumerate(zip(SOURCE.tolist(), ids.tolist(), strict=True)):
        prefix = [BOS]
        while prefix[-1] != EOS and len(prefix) <= 6:
            prefix.append(pick(model.log_p(source, prefix), len(prefix) - 1, sampling, row))
        assert found == prefix[1:] + [PAD] * (ids.shape[1] - len(prefix) + 1)
        assert scores[row] == pytest.approx(score(model, source, found))


def test_same_seed_same_samples_and_another_seed_others():
    same = np.repeat(SOURCE[:1], 20, axis=0)
    first = sample_decode(Random(2), same, seed=1).ids
    assert np.array_equal(first, sample_decode(Random(2), same, seed=1).ids)
    assert len({tuple(row) for row in first.tolist()}) > 5  # the rows draw different bits
    assert sample_decode(Random(2), same, seed=2).ids.tolist() != first.tolist()


def test_sampling_without_choice_is_greedy():
    expected = greedy_decode(Random(4), SOURCE)
    cases: list[dict[str, Any]] = [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}]
    for options in cases:
        found = sample_decode(Random(4), SOURCE, **options)
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.scores, expected.scores)


def test_frequencies_are_the_probabilities():
    model = Table({(): {3: 0.5, 4: 0.3, EOS: 0.2}, (3,): {EOS: 1.0}, (4,): {EOS: 1.0}})
    ids = sample_decode(model, np.repeat(SOURCE[:1], 1000, axis=0)).ids
    shares = np.bincount(ids[:, 0], minlength=6) / 1000
    np.testing.assert_allclose(shares, [0, 0, 0.2, 0.5, 0.3, 0], atol=0.05)


# ------------------------------------------------------------------------------------------------- beam


@pytest.mark.parametrize("spread", [0, 1e-9, 0.1, 1, 4])
def test_a_beam_of_width_1_is_greedy(spread):
    """Also where all ids are as good (spread 0), and where they differ by less than float64 adds up."""
    for seed in range(10):
        for alpha in (0.0, 3.0):
            greedy = greedy_decode(Random(seed, spread=spread), SOURCE)
            ids, scores = beam_search(Random(seed, spread=spread), SOURCE, width=1, length_penalty=alpha)
            assert np.array_equal(ids, greedy.ids)
            lengths = (ids != PAD).sum(axis=1)
            np.testing.assert_allclose(scores, greedy.scores / ((5 + lengths) / 6) ** alpha, rtol=1e-14)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_full_width_finds_the_best_of_all(alpha):
    for seed in range(4):
        model = Random(seed, vocab=6, longest=4, spread=2)
        ids, scores = beam_search(model, SOURCE, width=4**4, length_penalty=alpha)
        for source, row, found in zip(SOURCE.tolist(), ids.tolist(), scores, strict=True):
            best, expected = exhaustive(model, source, alpha)
            assert [t for t in row if t != PAD] == expected
            assert found == pytest.approx(best)


def test_a_wider_beam_finds_what_greedy_misses():
    garden = Table(
        {
            (): {3: 0.6, 4: 0.4},
            (3,): {3: 0.5, 4: 0.5},
            (4,): {5: 1.0},
            (4, 5): {EOS: 1.0},
            **{(3, n): {EOS: 0.5, 5: 0.5} for n in (3, 4)},
            **{(3, n, 5): {EOS: 1.0} for n in (3, 4)},
        }
    )
    assert greedy_decode(garden, SOURCE[:1]).ids.tolist() == [[3, 3, EOS]]
    found = beam_search(garden, SOURCE[:1], width=2, length_penalty=0)
    assert found.ids.tolist() == [[4, 5, EOS]]
    assert found.scores == pytest.approx(np.log(0.4))


def test_the_length_penalty_favours_longer_targets():
    """Wu et al. 2016, equation 14, by hand: log .3 = -1.204 at length 1, log .25 = -1.386 at length 4."""
    line = {(): {EOS: 0.3, 3: 0.25, 4: 0.45}, (4,): {5: 0.1, EOS: 0.05, 3: 0.1, 4: 0.1}}
    line |= {(3,) * n: {3: 1.0} for n in (1, 2)} | {(3, 3, 3): {EOS: 1.0}}
    line |= {(4, n): {EOS: 1.0} for n in (3, 4, 5)}
    short, long = (beam_search(Table(line), SOURCE[:1], width=4, length_penalty=alpha) for alpha in (0, 0.6))
    assert short.ids.tolist() == [[EOS]]
    assert short.scores == pytest.approx(np.log(0.3))
    assert long.ids.tolist() == [[3, 3, 3, EOS]]
    assert long.scores == pytest.approx(np.log(0.25) / (9 / 6) ** 0.6)


def test_the_search_ends_when_no_open_hypothesis_can_win():
    sure = Table({(): {EOS: 0.9, 3: 0.1}, **{(3,) * n: {3: 1.0} for n in range(1, 6)}})
    found = beam_search(sure, SOURCE[:1], width=2, length_penalty=0)
    assert found.ids.tolist() == [[EOS]]
    assert len(sure.fed) == 1
    # with alpha 10, 0.1 at length 6 may be worth more: -2.303 / (11 / 6)^10 = -0.0054 against log 0.9 = -0.1054
    beam_search(sure, SOURCE[:1], width=2, length_penalty=10)
    assert len(sure.fed) == 1 + 6


def test_a_target_that_is_cut_off_counts_only_where_none_is_finished():
    model = Table({(): {3: 0.9, EOS: 0.1}, **{(3,) * n: {3: 1.0} for n in range(1, 6)}})
    assert beam_search(model, SOURCE[:1], width=2, length_penalty=0).ids.tolist() == [[EOS]]
    assert beam_search(model, SOURCE[:1], width=1, length_penalty=0).ids.tolist() == [[3] * 6]


def test_of_equal_targets_the_lower_ids_win():
    even = Random(spread=0, vocab=7, longest=3)
    assert beam_search(even, SOURCE[:1], longest=1, width=3).ids.tolist() == [[EOS]]
    tie = Table({(): {5: 0.5, 4: 0.5}, (4,): {EOS: 1.0}, (5,): {EOS: 1.0}})
    for width in (1, 2, 5):
        assert beam_search(tie, SOURCE[:1], width=width).ids.tolist() == [[4, EOS]]


def test_sources_of_a_batch_are_searched_as_if_alone():
    ids, scores = beam_search(Random(6, spread=2), SOURCE, width=3)
    for i in range(len(SOURCE)):
        alone = beam_search(Random(6, spread=2), SOURCE[i : i + 1], width=3)
        assert alone.ids.tolist() == [[t for t in ids[i].tolist() if t != PAD]]
        assert alone.scores == scores[i]


def test_a_beam_is_never_worse_than_what_it_follows():
    """A width that holds every prefix of the greedy target has found at least that one."""
    for seed in range(20):
        greedy = greedy_decode(Random(seed, spread=2), SOURCE)
        found = beam_search(Random(seed, spread=2), SOURCE, width=4, length_penalty=0)
        ended = (greedy.ids == EOS).any(axis=1)
        assert (found.scores >= greedy.scores - 1e-12)[ended].mean() > 0.8


# ------------------------------------------------------------------------------------------------- the models

MODELS: dict[str, Any] = {
    "gru additive": gl.Seq2SeqConfig(9, 8, dim=6, hidden=10, longest=7),
    "lstm general": gl.Seq2SeqConfig(9, 8, dim=6, hidden=10, layers=2, cell="lstm", decoder="general", longest=7),
    "rnn initial": gl.Seq2SeqConfig(9, 8, dim=6, hidden=10, cell="rnn", decoder="initial", context="max", longest=7),
    "gru every_step": gl.Seq2SeqConfig(9, 8, dim=6, hidden=10, decoder="every_step", context="mean", longest=7),
    "transformer": gl.TransformerConfig(9, 8, dim=8, heads=2, longest=7),
    "post-norm": gl.TransformerConfig(9, 8, dim=8, heads=2, norm_first=False, positions="learned", longest=7),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("decode", [greedy_decode, sample_decode, beam_search])
def test_scores_are_those_of_a_whole_pass_over_the_answer(decode, name):
    """So every part of a model's state follows its row, whatever rows are dropped, taken twice or moved."""
    config = MODELS[name]
    make: Any = gl.Transformer if isinstance(config, gl.TransformerConfig) else gl.Seq2Seq
    model = make(config, seed=3, dtype="float64")
    model.head.weight.data[...] *= 6  # some rows are sure and end early, some are not
    source = np.array([[5, 8, 7, 2], [4, 2, 0, 0], [6, 6, 2, 0], [3, 8, 4, 2], [7, 2, 0, 0]])
    ids, scores = decode(model, source)
    inputs = np.concatenate([np.full((5, 1), BOS), ids[:, :-1]], axis=1)
    z = model(source, inputs)
    log_p = z - np.log(np.exp(z).sum(axis=2, keepdims=True))
    each = np.take_along_axis(log_p, ids[:, :, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(np.where(ids == PAD, 0, each).sum(axis=1), scores, rtol=1e-10)


# ------------------------------------------------------------------------------------------------- devices, errors


@pytest.mark.parametrize("decode", [greedy_decode, sample_decode, beam_search])
def test_on_a_gpu_as_on_the_cpu(decode):
    expected = decode(Random(7), SOURCE)
    found = decode(Random(7, device="emulated"), gl.to_device(SOURCE, "emulated"))
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.scores, expected.scores)


def test_take_rows():
    x = np.arange(6).reshape(3, 2)
    state = State(x, [None, 4, (x[:, 0], gl.to_device(x, "emulated"))])
    taken = take_rows(state, np.array([2, 0, 2]))
    assert isinstance(taken, State)
    assert taken.source.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert taken.parts[:2] == [None, 4]
    assert type(taken.parts[2]) is tuple
    assert taken.parts[2][0].tolist() == [4, 0, 4]
    assert taken.parts[2][1].get().tolist() == [[4, 5], [0, 1], [4, 5]]
    with pytest.raises(TypeError, match="take_rows takes arrays, ints and None in tuples and lists, got dict"):
        take_rows([{"h": x}], np.array([0]))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: greedy_decode(m, SOURCE[0]), r"greedy_decode takes sources of shape \(B, S\), got \(3,\)"),
        (lambda m: beam_search(m, SOURCE * 1.0), "beam_search takes an array of integer ids, got float64"),
        (lambda m: greedy_decode(m, [[3]]), "greedy_decode takes an array of integer ids, got list"),
        (lambda m: greedy_decode(m, SOURCE, 0), r"longest must be in 1\.\.6, the most that the model takes, got 0"),
        (lambda m: sample_decode(m, SOURCE, 7), r"sample_decode: longest must be in 1\.\.6"),
        (lambda m: greedy_decode(m, SOURCE, HALVES), "greedy_decode: longest must be an integer, got 2.5"),
        (lambda m: beam_search(m, SOURCE, width=0), "width must be at least 1, got 0"),
        (lambda m: beam_search(m, SOURCE, width=HALVES), "width must be an integer, got 2.5"),
        (lambda m: beam_search(m, SOURCE, length_penalty=-1), r"length_penalty must be in 0\.\.10, got -1"),
        (lambda m: beam_search(m, SOURCE, length_penalty=float("nan")), "length_penalty must be"),
        (lambda m: beam_search(m, SOURCE, length_penalty=1e6), r"length_penalty must be in 0\.\.10, got 1000000\.0"),
        (lambda m: beam_search(m, SOURCE, width=None), "width must be an integer, got None"),
        (lambda m: sample_decode(m, SOURCE, temperature=None), "temperature must be a number, got None"),
        (lambda m: sample_decode(m, SOURCE, temperature="1"), "temperature must be a number, got '1'"),
        (lambda m: sample_decode(m, SOURCE, top_p="1"), "top_p must be a number, got '1'"),
        (lambda m: sample_decode(m, SOURCE, seed=None), "seed must be an integer, got None"),
        (lambda m: sample_decode(m, SOURCE, temperature=-1), "temperature must be at least 0"),
        (lambda m: sample_decode(m, SOURCE, top_k=0), "top_k must be at least 1"),
        (lambda m: sample_decode(m, SOURCE, top_p=1.5), "top_p must be above 0 and at most 1"),
    ],
)
def test_wrong_arguments(call, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(Random())


@pytest.mark.parametrize("decode", [greedy_decode, sample_decode, beam_search])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers(decode, bad):
    model = Random()
    model.logits = lambda source, prefix: np.full(7, bad)
    with pytest.raises(FloatingPointError, match="the model's logits are not finite"):
        decode(model, SOURCE)
