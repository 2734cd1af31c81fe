"""What constructors refuse: one sentence of the library's own, with the argument, what it got and what it takes."""

import math

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.layers.feedforward import ACTIVATIONS

ZERO, NEGATIVE = "must be at least 1, got 0", "must be at least 1, got -1"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gl.Linear(-1, 3), f"Linear: in_features {NEGATIVE}"),
        (lambda: gl.Linear(3, 0), f"Linear: out_features {ZERO}"),
        (lambda: gl.Linear(3, 3, rng=-1), "rng must be a numpy Generator, a seed of 0 or more, or None, got -1"),
        (lambda: gl.Linear(3, 3, rng="a"), "rng must be a numpy Generator, a seed of 0 or more, or None, got 'a'"),
        (lambda: gl.Embedding(0, 4), f"Embedding: num_embeddings {ZERO}"),
        (lambda: gl.Embedding(4, -1), f"Embedding: embedding_dim {NEGATIVE}"),
        (lambda: gl.LayerNorm(0), f"LayerNorm: normalized_shape {ZERO}"),
        (lambda: gl.LayerNorm(8, eps=-1), "LayerNorm: eps must be 0 or more, got -1"),
        (lambda: gl.LayerNorm(8, eps=math.nan), "LayerNorm: eps must be 0 or more, got nan"),
        (lambda: gl.LayerNorm(8, eps=math.inf), "LayerNorm: eps must be 0 or more, got inf"),
        (lambda: gl.RMSNorm(-1), f"RMSNorm: normalized_shape {NEGATIVE}"),
        (lambda: gl.RMSNorm(8, eps=-1e-6), "RMSNorm: eps must be 0 or more, got -1e-06"),
        (lambda: gl.BatchNorm(0), f"BatchNorm: num_features {ZERO}"),
        (lambda: gl.BatchNorm(3, eps=-1), "BatchNorm: eps must be 0 or more, got -1"),
        (lambda: gl.BatchNorm(3, momentum=2), "BatchNorm: momentum must be in 0..1, got 2"),
        (lambda: gl.PReLU(0), f"PReLU: num_parameters {ZERO}"),
        (lambda: gl.PReLU(init=math.inf), "PReLU: init must be finite, got inf"),
        (lambda: gl.LeakyReLU(math.nan), "LeakyReLU: negative_slope must be finite, got nan"),
        (lambda: gl.Dropout(-0.1), "Dropout: p must be in 0..1, got -0.1"),
        (lambda: gl.Dropout(1.5), "Dropout: p must be in 0..1, got 1.5"),
        (lambda: gl.Dropout(math.nan), "Dropout: p must be in 0..1, got nan"),
        (lambda: gl.FeedForward(0), f"FeedForward: dim {ZERO}"),
        (lambda: gl.RNN(0, 4), f"RNN: input_size {ZERO}"),
        (lambda: gl.GRU(3, 4, num_layers=-1), f"GRU: num_layers {NEGATIVE}"),
        (lambda: gl.LSTMCell(3, 0), f"LSTMCell: hidden_size {ZERO}"),
        (lambda: gl.FeedForward(4, -1), f"FeedForward: hidden {NEGATIVE}"),
        (lambda: gl.LearnedPositions(-1, 4), f"LearnedPositions: context {NEGATIVE}"),
        (lambda: gl.LearnedPositions(4, 0), f"LearnedPositions: dim {ZERO}"),
        (lambda: gl.SinusoidalPositions(0), f"SinusoidalPositions: dim {ZERO}"),
        (lambda: gl.SinusoidalPositions(4, base=0), "SinusoidalPositions: base must be 1 or more, got 0"),
        (lambda: gl.Rotary(-2), "Rotary: dim must be at least 1, got -2"),
        (lambda: gl.Rotary(4, base=-1), "Rotary: base must be 1 or more, got -1"),
        (lambda: gl.causal_mask(-1, 2), "causal_mask: queries must be 0 or more, got -1"),
        (lambda: gl.causal_mask(2, -1), "causal_mask: keys must be 0 or more, got -1"),
        (lambda: gl.padding_mask(lengths=[1, 2], size=-1), "padding_mask: size must be 0 or more, got -1"),
        (
            lambda: gl.EncoderBlock(8, 2, activation=["gelu"]),
            f"FeedForward: activation must be one of {', '.join(ACTIVATIONS)}, got ['gelu']",
        ),
    ],
)
def test_out_of_range(make, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gl.Linear(2.5, 3), "Linear: in_features must be an integer, got 2.5"),
        (lambda: gl.Linear("2", 3), "Linear: in_features must be an integer, got '2'"),
        (lambda: gl.Linear(2, True), "Linear: out_features must be an integer, got True"),
        (lambda: gl.Linear(2, 2, dtype="int32"), "Linear: dtype must be a floating type, got 'int32'"),
        (lambda: gl.Linear(2, 2, dtype="float31"), "Linear: dtype must be a floating type, got 'float31'"),
        (lambda: gl.Embedding((4,), 4), "Embedding: num_embeddings must be an integer, got (4,)"),
        (lambda: gl.LayerNorm(8.0), "LayerNorm: normalized_shape must be an integer, got 8.0"),
        (lambda: gl.LayerNorm(8, eps=None), "LayerNorm: eps must be a number, got None"),
        (lambda: gl.LayerNorm(8, dtype="bool"), "LayerNorm: dtype must be a floating type, got 'bool'"),
        (lambda: gl.RNN("3", 4), "RNN: input_size must be an integer, got '3'"),
        (lambda: gl.GRU(3, 4.0), "GRU: hidden_size must be an integer, got 4.0"),
        (lambda: gl.LSTMCell(3, 4, dtype="int32"), "LSTMCell: dtype must be a floating type, got 'int32'"),
        (lambda: gl.RMSNorm(8, eps="1"), "RMSNorm: eps must be a number, got '1'"),
        (lambda: gl.BatchNorm(3, axis=0.5), "BatchNorm: axis must be an integer, got 0.5"),
        (lambda: gl.BatchNorm(3, momentum="0.1"), "BatchNorm: momentum must be a number, got '0.1'"),
        (lambda: gl.Dropout("half"), "Dropout: p must be a number, got 'half'"),
        (lambda: gl.Softmax(axis=None), "Softmax: axis must be an integer, got None"),
        (lambda: gl.LogSoftmax(axis=1.0), "LogSoftmax: axis must be an integer, got 1.0"),
        (lambda: gl.TiedLinear(np.ones((3, 4))), "TiedLinear takes the Parameter of a table (V, D), got ndarray"),
        (lambda: gl.TiedLinear(gl.LayerNorm(4).weight), "TiedLinear takes the Parameter of a table (V, D), got (4,)"),
        (lambda: gl.causal_mask(2.0, 2), "causal_mask: queries must be an integer, got 2.0"),
        (lambda: gl.LSTM(3, None), "LSTM: hidden_size must be an integer, got None"),
        (lambda: gl.BatchNorm(None), "BatchNorm: num_features must be an integer, got None"),
        (lambda: gl.AdditiveAttention(3, 4, None), "AdditiveAttention: hidden_size must be an integer, got None"),
        (lambda: gl.EncoderBlock(None, 2), "LayerNorm: normalized_shape must be an integer, got None"),
        (lambda: gl.EncoderBlock(8, None), "MultiHeadAttention: heads must be an integer, got None"),
        (
            lambda: gl.EncoderBlock(8, 2, norm_first="post"),
            "EncoderBlock: norm_first must be True or False, got 'post'",
        ),
        (lambda: gl.DecoderBlock(8, 2, norm_first=0), "DecoderBlock: norm_first must be True or False, got 0"),
        (lambda: gl.DecoderBlock(8, 2, dropout="x"), "MultiHeadAttention: dropout must be a number, got 'x'"),
        (lambda: gl.GRU(3, 4, bidirectional="no"), "GRU: bidirectional must be True or False, got 'no'"),
        (lambda: gl.GRUCell(3, 4, bias=None), "GRUCell: bias must be True or False, got None"),
        (lambda: gl.GRUCell(3, 4, dtype=None), "GRUCell: dtype must be a floating type, got None"),
    ],
)
def test_of_another_type(make, sentence):
    with pytest.raises(TypeError, match=r".") as caught:
        make()
    assert str(caught.value) == sentence


def test_numpy_integers_and_numbers_are_taken():
    gl.Linear(np.int64(2), np.int32(3), rng=np.uint8(1))
    gl.Dropout(np.float32(0.5))
    gl.LayerNorm(np.int64(4), eps=np.float64(1e-3))
    gl.Dropout(0)
    gl.LayerNorm(4, eps=0)
