import numpy as np
import pytest

from gpulayers.data import ByteTokenizer, CharTokenizer
from gpulayers.layers.layer import Layer
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.parameter import Parameter
from gpulayers.training.generate import generate, pieces


class Counter(Layer):
    """Says that the token after n is n + 1, and remembers what it was shown."""

    config = GPTConfig(vocab=50, context=4)

    def __init__(self) -> None:
        self.weight = Parameter(np.zeros(1, np.float32))
        self.seen = []

    def __call__(self, ids):
        self.seen.append(ids.tolist())
        logits = np.zeros((*ids.shape, 50), np.float32)
        np.put_along_axis(logits, (ids + 1)[..., None], 30.0, axis=-1)
        return logits


@pytest.fixture(scope="module")
def model():
    return GPT(GPTConfig(vocab=11, context=8, layers=1, heads=2, dim=16), seed=0)


def test_a_long_text_slides():
    model = Counter()
    assert generate(model, [3, 4], 5).tolist() == [5, 6, 7, 8, 9]
    assert model.seen == [[[3, 4]], [[3, 4, 5]], [[3, 4, 5, 6]], [[4, 5, 6, 7]], [[5, 6, 7, 8]]]


def test_prompt_longer_than_the_context():
    model = Counter()
    assert generate(model, np.arange(10), 1).tolist() == [10]
    assert model.seen == [[[6, 7, 8, 9]]]


def test_same_seed_same_text(model):
    first = generate(model, [1, 2], 20, seed=3)
    assert first.dtype == np.int64
    assert first.shape == (20,)
    assert np.array_equal(first, generate(model, [1, 2], 20, seed=3))
    assert not np.array_equal(first, generate(model, [1, 2], 20, seed=4))
    assert np.array_equal(first[:7], generate(model, [1, 2], 7, seed=3))


def test_temperature_0_is_greedy(model):
    ids = [5]
    for token in generate(model, [5], 12, temperature=0):
        assert token == model(np.array([ids[-8:]]))[0, -1].argmax()
        ids.append(int(token))
    assert np.array_equal(generate(model, [5], 12, temperature=0), generate(model, [5], 12, top_k=1))
    assert np.array_equal(generate(model, [5], 12, temperature=0), generate(model, [5], 12, temperature=1e-300))


def test_no_tokens(model):
    assert generate(model, [1], 0).shape == (0,)


def test_float64_model():
    model = GPT(GPTConfig(vocab=11, context=8, layers=1, heads=2, dim=16), seed=0, dtype="float64")
    assert generate(model, [1], 5).shape == (5,)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ids": []}, "the prompt is empty"),
        ({"tokens": -1}, "tokens must be at least 0, got -1"),
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature takes a finite number"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_out_of_range(model, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(model, **{"ids": [1], "tokens": 3, **options})


def test_pieces_wait_for_whole_characters():
    tokenizer = ByteTokenizer()
    text = "aé€😀b"
    assert list(pieces(tokenizer, tokenizer.encode(text).tolist())) == list(text)
    broken = list(b"a\xe2\x82") + list(b"z\xff")
    assert "".join(pieces(tokenizer, broken)) == bytes(broken).decode(errors="replace")
    assert "".join(pieces(tokenizer, [0xFF] * 40)) == "\ufffd" * 40


def test_pieces_of_characters():
    tokenizer = CharTokenizer("ab€")
    assert list(pieces(tokenizer, tokenizer.encode("b€a").tolist())) == ["b", "€", "a"]
