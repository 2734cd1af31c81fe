import numpy as np
import pytest

from gpulayers.data import IGNORE, DataError
from gpulayers.data.pairs import (
    BOS,
    EOS,
    PAD,
    UNK,
    Pair,
    PairBatches,
    Vocabulary,
    digest_of,
    encode_pairs,
    encode_sources,
    file_pair,
    order,
    padded,
    read_pairs,
    split_pairs,
    vocabulary_from_json,
)

PAIRS = [Pair(f"s{i}", f"t{i % 7}") for i in range(57)]


# ------------------------------------------------------------------------------------------------- files


def write(tmp_path, content: bytes):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content", [b"one\tun\ntwo two\tdeux", b"one\tun\r\ntwo two\tdeux\r\n", b"\xef\xbb\xbfone\tun\ntwo two\tdeux\n"]
)
def test_lines_as_editors_and_spreadsheets_write_them(tmp_path, content):
    assert read_pairs(write(tmp_path, content), "characters", 9) == [("one", "un"), ("two two", "deux")]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\tb\na\tb\tc\n", "pairs.tsv, line 2 has 3 columns, not 2: a line is source TAB target"),
        (b"a b\n", "pairs.tsv, line 1 has 1 column, not 2"),
        (b"a\tb\n\nc\td\n", "pairs.tsv, line 2 is empty: a line is source TAB target"),
        (b"a\tb\n\r\n", "pairs.tsv, line 2 is empty"),
        (b"a\tb\n\n", "pairs.tsv, line 2 is empty"),
        (b"\tb\n", "pairs.tsv, line 1 has an empty source"),
        (b"a\tb\na\t \n", "pairs.tsv, line 2 has an empty target"),
        (b"a\tb\nc\t\xe9t\xe9\n", "pairs.tsv, line 2 is not UTF-8 text: byte 0xe9"),
        (b"a\tb\nc\t123456789\n", "line 2: its target has 9 characters, more than --longest 8: give a larger one"),
        (b"123456789\tb\n", "line 1: its source has 9 characters"),
        (b"", "pairs.tsv is empty"),
        (b"\xef\xbb\xbf", "pairs.tsv has no lines"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence_with_its_line(tmp_path, content, sentence):
    with pytest.raises(DataError) as error:
        read_pairs(write(tmp_path, content), "characters", 8)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_lengths_are_counted_in_tokens(tmp_path):
    path = write(tmp_path, b"five words in the source\tand four here altogether\n")
    assert len(read_pairs(path, "words", 5)) == 1
    with pytest.raises(DataError, match="line 1: its source has 5 words, more than --longest 4"):
        read_pairs(path, "words", 4)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match=r"data file .*nothing.tsv does not exist"):
        read_pairs(tmp_path / "nothing.tsv", "words", 5)
    with pytest.raises(DataError, match="is a folder"):
        read_pairs(tmp_path, "words", 5)


def test_the_digest_tells_files_apart():
    assert digest_of([Pair("a", "b")]) != digest_of([Pair("b", "a")])
    assert digest_of(PAIRS) != digest_of(PAIRS[::-1])
    assert digest_of(PAIRS) == digest_of(list(PAIRS))


# ------------------------------------------------------------------------------------------------- split and order


def test_a_tenth_is_measured_on():
    train, measured = split_pairs(PAIRS, seed=0)
    assert (len(train), len(measured)) == (52, 5)
    assert sorted(train + measured) == sorted(PAIRS)
    assert train == [p for p in PAIRS if p in train]
    assert split_pairs(PAIRS, 0) == (train, measured)
    assert split_pairs(PAIRS, 1)[1] != measured
    assert [len(part) for part in split_pairs(PAIRS[:2], 0)] == [1, 1]


def test_no_measured_source_is_trained_on():
    pairs = [Pair(f"s{i % 20}", f"t{i}") for i in range(60)]
    train, measured = split_pairs(pairs, 0)
    assert len(measured) == 6
    assert not {p.source for p in train} & {p.source for p in measured}
    with pytest.raises(DataError, match="the data has one source only"):
        split_pairs([Pair("a", "b"), Pair("a", "c")], 0)


def test_every_epoch_has_each_pair_once_in_an_order_of_its_own():
    epochs = [[file_pair(PAIRS, 5, e * 57 + i) for i in range(57)] for e in range(3)]
    assert all(sorted(epoch) == sorted(PAIRS) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[1] == [file_pair(PAIRS, 5, 57 + i) for i in range(57)]
    assert order(0, 0, 5).tolist() == [2, 3, 1, 4, 0]  # any version of NumPy gives this


# ------------------------------------------------------------------------------------------------- vocabulary


def test_characters():
    vocabulary = Vocabulary.of(["cab", "b€"], "characters", 99)
    assert vocabulary.known == ["a", "b", "c", "€"]
    assert len(vocabulary) == 8
    assert vocabulary.encode("a€xb").tolist() == [4, 7, UNK, 5]
    assert vocabulary.encode("").dtype == np.int64
    assert vocabulary.decode([BOS, 4, PAD, UNK, 7, EOS, 5]) == "a\ufffd€"


def test_words():
    vocabulary = Vocabulary.of(["the cat  the dog", "a cat"], "words", 2)
    assert vocabulary.known == ["cat", "the"]  # the two most frequent
    assert vocabulary.encode(" the\tdog cat").tolist() == [5, UNK, 4]
    assert vocabulary.decode([5, UNK, 4, EOS]) == "the \ufffd cat"
    assert vocabulary.normal(" the\tdog  cat") == "the dog cat"


def test_of_equally_frequent_symbols_the_first_are_kept():
    assert Vocabulary.of(["dcba"], "characters", 2).known == ["a", "b"]


def test_vocabularies_are_stored_as_json():
    vocabulary = Vocabulary.of(["a tab\t"], "characters", 99)
    again = vocabulary_from_json(vocabulary.to_json())
    assert (again.known, again.tokens) == (vocabulary.known, "characters")
    for bad in (None, {}, {"tokens": "bytes", "known": []}, {"tokens": "words", "known": [3]}):
        with pytest.raises(DataError, match="not a stored vocabulary"):
            vocabulary_from_json(bad)


def test_ids_out_of_range():
    for bad in (-1, 5):
        with pytest.raises(ValueError, match=rf"id {bad} is outside 0\.\.4"):
            Vocabulary("words", ["a"]).decode([bad])


# ------------------------------------------------------------------------------------------------- batches


def test_encoded_pairs():
    vocabularies = Vocabulary("characters", list("abc")), Vocabulary("characters", list("xy"))
    source, inputs, targets = encode_pairs([Pair("ab", "xyx"), Pair("cab", "y")], vocabularies)
    assert source.tolist() == [[4, 5, EOS, PAD], [6, 4, 5, EOS]]
    assert inputs.tolist() == [[BOS, 4, 5, 4], [BOS, 5, PAD, PAD]]
    assert targets.tolist() == [[4, 5, 4, EOS], [5, EOS, IGNORE, IGNORE]]
    assert {a.dtype for a in (source, inputs, targets)} == {np.dtype(np.int64)}
    assert encode_sources(["b"], vocabularies[0]).tolist() == [[5, EOS]]
    assert padded([], 0).shape == (0, 0)


def batches(batch):
    texts = [text for pair in PAIRS for text in pair]
    vocabulary = Vocabulary.of(texts, "characters", 99)
    return PairBatches(lambda i: file_pair(PAIRS, 0, i), (vocabulary, vocabulary), batch)


def test_batches_are_a_function_of_their_number():
    for a, b in zip(batches(8).batch(9), batches(8).batch(9), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(batches(8).batch(9)[0], batches(8).batch(8)[0])


def test_micro_batches_are_the_batch():
    for accumulate in (1, 3, 8):
        parts = list(batches(8).micro_batches(3, accumulate))
        assert [first for first, _ in parts] == [8 * i // accumulate for i in range(accumulate)]
        for i, whole in enumerate(batches(8).batch(3)):
            assert np.array_equal(np.concatenate([arrays[i] for _, arrays in parts]), whole)
    with pytest.raises(ValueError, match="a batch of 8 samples cannot be split in 9 parts"):
        list(batches(8).micro_batches(0, 9))
    with pytest.raises(ValueError, match="batch must be at least 1"):
        batches(0)
