import builtins
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import load

from gpulayers.data import DataError, tokenizer_from_json
from gpulayers.data.subword import END, SubwordTokenizer, TokenizersMissing
from gpulayers.remedies import INSTALL

GPT2 = Path(__file__).parents[1] / "vectors" / "gpt2"
LINES = [
    "She sells sea shells by the sea shore; the shells she sells are sea shells, I'm sure.\n",
    "Peter Piper picked a peck of pickled peppers. Where's the peck of pickled peppers Peter Piper picked?\n",
    "How much wood would a woodchuck chuck if a woodchuck could chuck wood?\n",
]
TEXT = "".join(LINES) * 9
WORDS = '{"model": {"type": "WordLevel", "vocab": {"a": 7}, "unk_token": "a"}}'


@pytest.fixture(scope="module")
def trained():
    return SubwordTokenizer.train([TEXT], 300)


@pytest.fixture(scope="module")
def gpt2():
    return SubwordTokenizer.from_file(GPT2)


def test_it_cuts_as_the_one_that_was_recorded(gpt2):
    file = load("gpt2")
    found = gpt2.encode(str(file["text"]))
    assert found.dtype == np.uint16
    assert found.tolist() == file["tokens"].tolist()
    assert gpt2.decode(found) == str(file["text"])
    assert gpt2.vocab_size == gpt2.tokens == 300


def test_vocabulary_and_merges_are_the_same_tokenizer(gpt2, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(GPT2 / name, tmp_path)
    found = SubwordTokenizer.from_file(tmp_path)
    for text in (TEXT, "é🙂\r\n\n x  y\t", END + "a" + END, ""):
        assert found.encode(text).tolist() == gpt2.encode(text).tolist()
        assert found.decode(found.encode(text)) == text
    assert (found.end, found.vocab_size) == (gpt2.end, gpt2.vocab_size) == (299, 300)


def test_training_merges_what_comes_often(trained):
    assert trained.vocab_size == 300
    words = [trained.decode([i]) for i in trained.encode("She sells sea shells")]
    assert " sea" in words
    assert " shells" in words
    assert trained.end == 0


def test_training_twice_gives_the_same_tokenizer(trained):
    assert SubwordTokenizer.train([TEXT], 300).to_json() == trained.to_json()
    assert SubwordTokenizer.train(iter(LINES * 9), 300).to_json() == trained.to_json()


def test_a_vocabulary_ends_where_no_pair_comes_twice():
    found = SubwordTokenizer.train(["abab"], 5000)
    assert 257 <= found.vocab_size < 260
    assert found.decode(found.encode("abab, unknown: é")) == "abab, unknown: é"


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=30))
def test_every_text_comes_back(trained, text):
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(DataError, match="is not a character"):
            trained.encode(text)
        return
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.byte_count(ids) == len(text.encode())
    again = tokenizer_from_json(json.loads(json.dumps(trained.to_json())))
    assert again.encode(text).tolist() == ids.tolist()


def test_bytes_are_counted_where_a_token_ends_inside_a_character(trained):
    ids = trained.encode("é🙂")  # no merges of these: a byte each
    assert [trained.byte_count(ids[:n]) for n in range(7)] == list(range(7))
    assert trained.byte_count(np.array([trained.end])) == len(END)


def test_many_texts_at_once(trained):
    texts = ["one", "", "She sells\n", "é"]
    assert [ids.tolist() for ids in trained.encode_many(texts)] == [trained.encode(text).tolist() for text in texts]


def test_other_tokenizers_of_the_library():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    found = SubwordTokenizer(inner.to_str())
    assert found.encode("a b c a").tolist() == [0, 1, 2, 0]  # neither cut nor padded
    assert found.decode([0, 1]) == "a b"
    assert found.byte_count(np.array([0, 1])) == 3
    assert found.end is None


def test_a_vocabulary_that_is_filled_up(trained):
    found = trained.filled_up(512)
    assert (found.vocab_size, found.tokens) == (512, 300)
    assert found.decode([511, *trained.encode("sea")]) == "sea"
    assert found.byte_count(np.array([511])) == 0
    assert tokenizer_from_json(found.to_json()).vocab_size == 512
    with pytest.raises(ValueError, match=r"decode: id 512 at position 1 is outside 0..511"):
        found.decode([0, 512])


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt"),
        ({"vocab.json": "{}"}, "has no tokenizer: neither"),
        ({"vocab.json": "{}", "merges.txt": "a b c"}, "are not the files of a BPE: "),
        (
            {"vocab.json": '{"a": 4294967295}', "merges.txt": ""},
            "has 1 tokens, and ids up to 4294967295: it is damaged",
        ),
        ({"tokenizer.json": WORDS.replace("7", "2147483647")}, "has 1 tokens, and ids up to 2147483647: it is damaged"),
        ({"tokenizer.json": WORDS.replace('"a": 7', "")}, "tokenizer.json: the tokenizer has no tokens"),
        ({"tokenizer.json": "{}"}, "tokenizer.json: not a tokenizer of the tokenizers library: "),
        ({"tokenizer.json": "no JSON"}, "tokenizer.json: not a tokenizer of the tokenizers library: "),
        ({"tokenizer.json": b"\xff"}, "tokenizer.json is not UTF-8 text"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, files, sentence):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=sentence) as caught:
        SubwordTokenizer.from_file(tmp_path)
    assert "\n" not in str(caught.value)


def test_other_bad_input(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer .*x.json does not exist"):
        SubwordTokenizer.from_file(tmp_path / "x.json")
    with pytest.raises(DataError, match="at least 257 tokens, got a vocab_size of 256"):
        SubwordTokenizer.train([TEXT], 256)
    with pytest.raises(DataError, match="not a stored tokenizer"):
        tokenizer_from_json({"kind": "subword", "size": "300", "tokenizer": {}})


def test_without_the_library(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError("No module named 'tokenizers'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for act in (lambda: SubwordTokenizer.from_file(GPT2), lambda: SubwordTokenizer.train([TEXT], 300)):
        with pytest.raises(TokenizersMissing, match="need the tokenizers package") as caught:
            act()
        assert INSTALL["tokenizers"] in str(caught.value)
