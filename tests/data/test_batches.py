import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.data import (
    IGNORE,
    Batches,
    ByteTokenizer,
    Corpus,
    DataError,
    encode_split,
    load_corpus,
    validation_windows,
)

sizes = st.integers(1, 9)


def files(*lengths: int) -> list[np.ndarray]:
    """Texts whose tokens say where they stand: file i has i * 1000, i * 1000 + 1, ..."""
    return [np.arange(length, dtype=np.uint16) + 1000 * i for i, length in enumerate(lengths)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(10, 40), min_size=1, max_size=4),
    sizes,
    sizes,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40 - 2),
)
def test_a_batch_is_a_pure_function_of_seed_and_k(lengths, context, batch, seed, k):
    batches = Batches(files(*lengths), context, batch, seed)
    ids, targets = batches.batch(k)
    assert ids.shape == targets.shape == (batch, context)
    assert ids.dtype == targets.dtype == np.int64
    np.testing.assert_array_equal(targets, ids + 1)  # next token, and never from another file
    assert (targets // 1000 == ids // 1000).all()
    batches.batch(k + 1)
    for again in (batches.batch(k), Batches(files(*lengths), context, batch, seed).batch(k)):
        np.testing.assert_array_equal(again[0], ids)
        np.testing.assert_array_equal(again[1], targets)


@settings(max_examples=50, deadline=None)
@given(sizes, st.data())
def test_micro_batches_are_the_samples_of_the_big_batch(batch, data):
    accumulate = data.draw(st.integers(1, batch))
    batches = Batches(files(30, 20), 4, batch, seed=3)
    ids, targets = batches.batch(7)
    parts = list(batches.micro_batches(7, accumulate))
    assert len(parts) == accumulate
    assert [first for first, _, _ in parts] == np.cumsum([0, *(len(part) for _, part, _ in parts)])[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([part for _, part, _ in parts]), ids)
    np.testing.assert_array_equal(np.concatenate([part for _, _, part in parts]), targets)
    first, part, _ = parts[-1]
    np.testing.assert_array_equal(batches.batch(7, first, batch)[0], part)


def test_a_smaller_batch_is_the_beginning_of_a_larger_one():
    small, large = (Batches(files(500), 8, batch, seed=1).batch(5)[0] for batch in (3, 16))
    np.testing.assert_array_equal(small, large[:3])


def test_the_windows_are_those_of_numpys_philox():
    """Pinned: a resumed run must find the same batches with any version of NumPy."""
    key = np.array([42, 7 << 24 | (1 << 24) - 1], np.uint64)
    words = np.random.Philox(key=key, counter=np.array([0, 0, 0, 0], np.uint64)).random_raw(4)
    expected = [int(word) * 992 >> 64 for word in words]
    starts = Batches(files(1000), 8, 4, seed=42).batch(7)[0][:, 0].tolist()
    assert starts == expected == [412, 362, 234, 754]


def test_every_window_is_equally_likely():
    batches = Batches(files(8, 5, 20), 4, 64, seed=0)
    starts = np.concatenate([batches.batch(k)[0][:, 0] for k in range(300)])
    possible = [*range(4), 1000, *range(2000, 2016)]
    assert batches.windows == len(possible)
    found, counts = np.unique(starts, return_counts=True)
    assert found.tolist() == possible
    expected = len(starts) / len(possible)
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 20 degrees of freedom: p = 0.001


def test_seeds_and_steps_give_different_batches():
    starts = {tuple(Batches(files(999), 8, 8, seed).batch(k)[0][:, 0]) for seed in range(5) for k in range(5)}
    assert len(starts) == 25


def test_a_text_that_is_too_short_is_named_with_its_lengths():
    sentence = r"b.txt is too short: its training part has 8 tokens, a context of 8 needs at least 9"
    with pytest.raises(DataError, match=sentence):
        Batches(files(9, 8), 8, 2, 0, names=["a.txt", "b.txt"])
    assert Batches(files(9), 8, 2, 0).batch(0)[0].tolist() == [list(range(8))] * 2
    with pytest.raises(DataError, match="text 1 is too short"):
        Batches(files(0), 1, 1, 0)
    with pytest.raises(DataError, match="no text"):
        Batches([], 1, 1, 0)


@pytest.mark.parametrize(("context", "batch"), [(0, 1), (1, 0), (-1, 1)])
def test_sizes_must_be_positive(context, batch):
    with pytest.raises(ValueError, match="at least 1"):
        Batches(files(9), context, batch, 0)
    with pytest.raises(ValueError, match="at least 1"):
        validation_windows(files(9), context, batch)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_have_64_bits(seed):
    with pytest.raises(ValueError, match="seed must be in"):
        Batches(files(9), 2, 2, seed)


@pytest.mark.parametrize("accumulate", [0, 5])
def test_a_batch_cannot_be_split_in_more_parts_than_samples(accumulate):
    with pytest.raises(ValueError, match="a batch of 4 samples cannot be split"):
        list(Batches(files(9), 2, 4, 0).micro_batches(0, accumulate))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda n: max(n) > 1), sizes, sizes)
def test_validation_scores_every_token_but_the_first_exactly_once(lengths, context, batch):
    tokens = files(*lengths)
    scored = []
    for ids, targets in validation_windows(tokens, context, batch):
        assert ids.shape == targets.shape
        assert ids.shape[1] == context
        assert 1 <= len(ids) <= batch
        counted = targets != IGNORE
        np.testing.assert_array_equal(targets[counted], ids[counted] + 1)
        assert (ids[~counted] == 0).all()
        scored += targets[counted].tolist()
    assert scored == np.concatenate([part[1:] for part in tokens]).tolist()


def test_a_quick_look_takes_windows_from_all_over_the_text():
    batches = list(validation_windows(files(101), 10, 4, limit=5))
    assert [len(ids) for ids, _ in batches] == [4, 1]
    assert np.concatenate([ids[:, 0] for ids, _ in batches]).tolist() == [0, 20, 40, 60, 80]
    assert sum(len(ids) for ids, _ in validation_windows(files(101), 10, 4, limit=99)) == 10


def test_nothing_to_validate_on():
    with pytest.raises(DataError, match="too short: 1 tokens, at least 2"):
        validation_windows(files(1, 0), 4, 2)


def test_the_validation_text_is_scored_whole_and_trained_on_nowhere():
    corpus = Corpus("two", ["a", "b"], ["a" * 90 + "B" * 10, "c" * 45 + "D" * 5], "")
    train, validation = encode_split(corpus, ByteTokenizer())
    assert [bytes(part) for part in train] == [b"a" * 90, b"c" * 45]
    assert [bytes(part) for part in validation] == [b"a" + b"B" * 10, b"c" + b"D" * 5]
    scored = [t for _, targets in validation_windows(validation, 4, 2) for t in targets[targets != IGNORE]]
    assert bytes(scored) == b"B" * 10 + b"D" * 5


def test_the_default_corpus_makes_batches():
    corpus = load_corpus()
    train, validation = encode_split(corpus, ByteTokenizer())
    ids, _ = Batches(train, 64, 4, 0, corpus.names).batch(0)
    assert all(ByteTokenizer().decode(row) in corpus.texts[0] for row in ids)
    assert sum((targets != IGNORE).sum() for _, targets in validation_windows(validation, 64, 32)) == len(
        corpus.split()[1][0].encode()
    )
