from types import SimpleNamespace

import numpy as np
import pytest

from gpulayers.data.pairs import BOS, EOS, PAD, UNK, Pair, Vocabulary
from gpulayers.decoding import beam_search
from gpulayers.layers.layer import Layer
from gpulayers.parameter import Parameter
from gpulayers.training.pictures import plot_attention
from gpulayers.training.translator import Look, Translator

LETTERS = Vocabulary("characters", list("abcd"))
VOCABULARIES = (LETTERS, LETTERS)


class Copy(Layer):
    """Copies its source; `d` comes out as `a`, and `c` as what is no number if there is to be none."""

    config = SimpleNamespace(pad=PAD, bos=BOS, eos=EOS, longest=9)

    def __init__(self, broken=False) -> None:
        self.weight = Parameter(np.zeros(1, np.float32))
        self.broken = broken

    def logits(self, ids):
        ids = np.where(ids == LETTERS.encode("d")[0], LETTERS.encode("a")[0], ids)
        logits = np.where(np.arange(len(LETTERS)) == ids[..., None], 5.0, 0.0).astype(np.float32)
        if self.broken:
            logits[ids == LETTERS.encode("c")[0]] = np.nan
        return logits

    def start(self, source):
        return source, 0

    def step(self, ids, state):
        source, place = state
        return self.logits(source[:, min(place, source.shape[1] - 1)]), (source, place + 1)

    def __call__(self, source, target_in):
        places = np.minimum(np.arange(target_in.shape[1]), source.shape[1] - 1)
        return np.ascontiguousarray(self.logits(source[:, places]))

    def attention(self, source, target_in):
        weights = np.eye(target_in.shape[1], source.shape[1])[None]
        return np.stack([weights, 0 * weights], axis=1)  # (B, H, T, S)


def test_answers():
    assert Translator(Copy(), VOCABULARIES).answers(["abc", "b", "dxd"]) == ["abc", "b", "a\ufffda"]
    assert Translator(Copy(), VOCABULARIES).answers(["ab"], lambda m, x: beam_search(m, x, width=3)) == ["ab"]


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_loss_and_exact_match(batch):
    pairs = [Pair("ab", "ab"), Pair("d", "a"), Pair("ad", "ad"), Pair("abc", "abc")]
    found = Translator(Copy(), VOCABULARIES).measure(pairs, batch)
    assert found.accuracy == 0.75
    right = -np.log(np.exp(5) / (np.exp(5) + 7))
    assert found.loss == pytest.approx((11 * right + (right + 5)) / 12, rel=1e-6)  # eos counts


def test_an_answer_of_other_length_is_wrong():
    pairs = [Pair("ab", "a"), Pair("ab", "abb"), Pair("a", "a")]
    for batch in (1, 3):
        assert Translator(Copy(), VOCABULARIES).measure(pairs, batch).accuracy == pytest.approx(1 / 3)


def test_an_unknown_symbol_is_never_right():
    assert Translator(Copy(), VOCABULARIES).measure([Pair("x", "x")], 1).accuracy == 0
    assert LETTERS.encode("x").tolist() == [UNK]


def test_words_are_compared_whatever_stands_between_them():
    words = Vocabulary("words", ["one", "two"])
    assert Translator(Copy(), (words, words)).measure([Pair("one two", "one  two")], 1).accuracy == 1


def test_a_model_that_is_not_finite_is_never_right():
    with np.errstate(invalid="ignore"):
        found = Translator(Copy(broken=True), VOCABULARIES).measure([Pair("c", "c")], 1)
    assert found.accuracy == 0
    assert np.isnan(found.loss)


def test_look():
    look = Translator(Copy(), VOCABULARIES).look("abx")
    assert look.source == ["a", "b", "\ufffd", "end"]
    assert look.answer == ["a", "b", "\ufffd", "end"]
    assert np.array_equal(look.weights, np.eye(4) / 2)  # the mean of two heads


@pytest.mark.parametrize(
    "looks",
    [
        [Look(["a", " ", "$", "end"], ["$", "x", "end"], np.eye(3, 4))],
        [Look(["漢", "end"], ["字", "end"], np.eye(2)), Look(["words", "end"], ["end"], np.ones((1, 2)) / 2)],
        [Look(["x"] * 90, ["y"] * 20, np.full((20, 90), 1 / 90))],
    ],
)
def test_any_symbols_make_a_picture(looks, tmp_path):
    plot_attention(looks, tmp_path / "attention.png", "a run")
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
