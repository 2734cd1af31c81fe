import math

import numpy as np
import pytest

from gpulayers.data import ByteTokenizer, CharTokenizer, validation_windows
from gpulayers.layers.layer import Layer
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.parameter import Parameter
from gpulayers.training.evaluate import Measurement, evaluate


class Uniform(Layer):
    """Gives every token of `vocab` the same probability."""

    def __init__(self, vocab: int) -> None:
        self.weight = Parameter(np.zeros(1, np.float32))
        self.vocab = vocab

    def __call__(self, ids):
        return np.zeros((*ids.shape, self.vocab), np.float32)


def test_uniform_bytes():
    tokens = [ByteTokenizer().encode("é" * 50)]
    result = evaluate(Uniform(256), validation_windows(tokens, 16, 3), ByteTokenizer())
    assert (result.tokens, result.bytes) == (99, 99)  # the first token is predicted from nothing, so it is not
    assert result.loss == pytest.approx(math.log(256), rel=1e-6)
    assert result.perplexity == pytest.approx(256, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(8, rel=1e-6)


def test_characters_are_measured_in_bytes():
    tokenizer = CharTokenizer("aé€😀")
    tokens = [tokenizer.encode("aé€😀" * 5)]
    result = evaluate(Uniform(4), validation_windows(tokens, 8, 2), tokenizer)
    assert (result.tokens, result.bytes) == (19, 10 * 5 - 1)
    assert result.bits_per_byte == pytest.approx(2 * 19 / 49, rel=1e-6)


def test_batches_do_not_matter():
    model = GPT(GPTConfig(vocab=256, context=8, layers=1, heads=2, dim=16), seed=0)
    tokens = [np.arange(100, dtype=np.uint8)]
    losses = [evaluate(model, validation_windows(tokens, 8, b), ByteTokenizer()).loss for b in (1, 3, 50)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_a_hopeless_model_has_infinite_perplexity():
    assert Measurement(total=1e4, tokens=1, bytes=1).perplexity == math.inf
