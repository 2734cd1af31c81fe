import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.data import ByteTokenizer, CharTokenizer, Corpus, DataError, make_tokenizer, tokenizer_from_json

text = st.text(st.characters(exclude_categories=["Cs"]))  # no surrogates: a text from a file cannot have them


@settings(max_examples=50, deadline=None)
@given(text)
def test_bytes_round_trip(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint8
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text


@settings(max_examples=50, deadline=None)
@given(text.filter(bool))
def test_characters_round_trip(text):
    tokenizer = CharTokenizer(text)
    ids = tokenizer.encode(text)
    assert ids.shape == (len(text),)
    assert [tokenizer.vocabulary[i] for i in ids] == list(text)
    assert tokenizer.decode(ids) == text
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again.encode(text).tolist() == ids.tolist()
    assert again.vocab_size == tokenizer.vocab_size == len(set(text))


def test_bytes_that_are_no_text():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([0x61, 0xFF, 0x62]) == "a\ufffdb"
    assert tokenizer.decode(np.frombuffer("é".encode()[:1], np.uint8)) == "\ufffd"


def test_a_byte_that_the_command_line_could_not_decode_survives():
    assert ByteTokenizer().encode(b"a\xff".decode("utf-8", "surrogateescape")).tolist() == [0x61, 0xFF]
    with pytest.raises(DataError, match=r"'\\ud800' at position 1 is not a character"):
        ByteTokenizer().encode("a\ud800")


def test_nothing_to_encode_or_decode():
    for tokenizer in (ByteTokenizer(), CharTokenizer("ab")):
        assert tokenizer.encode("").shape == (0,)
        assert tokenizer.decode([]) == ""


@pytest.mark.parametrize(("size", "dtype"), [(1, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_ids_take_the_smallest_type(size, dtype):
    tokenizer = CharTokenizer("".join(chr(0x4E00 + i) for i in range(size)))
    ids = tokenizer.encode(tokenizer.vocabulary)
    assert ids.dtype == dtype
    assert ids.tolist() == list(range(size))


def test_the_vocabulary_comes_from_all_texts_in_order():
    corpus = Corpus("two", ["a", "b"], ["banana", "zoo"], "")
    tokenizer = make_tokenizer("char", corpus)
    assert isinstance(tokenizer, CharTokenizer)
    assert tokenizer.vocabulary == "abnoz"
    assert isinstance(make_tokenizer("byte", corpus), ByteTokenizer)
    with pytest.raises(ValueError, match="unknown tokenizer 'word'; there are byte, char"):
        make_tokenizer("word", corpus)


@pytest.mark.parametrize(("prompt", "position"), [("bcx", 2), ("🙂", 0), ("a\ud800", 1), ("\x00", 0)])
def test_an_unknown_character_is_named(prompt, position):
    with pytest.raises(DataError, match=f"at position {position} is not in the vocabulary, the 3 characters"):
        CharTokenizer("abc").encode(prompt)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("abc")])
def test_ids_out_of_range(tokenizer):
    size = tokenizer.vocab_size
    for ids in ([0, -1], np.array([0, size])):
        with pytest.raises(ValueError, match=rf"id {ids[1]} at position 1 is outside 0..{size - 1}"):
            tokenizer.decode(ids)
    with pytest.raises(TypeError, match="integer ids, got float64"):
        tokenizer.decode([0.5])


@pytest.mark.parametrize("value", [None, [], {}, {"kind": "bpe"}, {"kind": "char"}, {"kind": "char", "vocabulary": ""}])
def test_a_broken_stored_tokenizer(value):
    with pytest.raises(DataError, match=r"not a stored tokenizer|at least one character"):
        tokenizer_from_json(value)
