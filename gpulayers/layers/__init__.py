"""One layer a file, forward and backward side by side. `layer.py` has the contract that all of them keep."""

from gpulayers.layers.activation import (
    CELU,
    ELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LogSigmoid,
    Mish,
    ReLU6,
    Softplus,
    Softsign,
    Threshold,
)
from gpulayers.layers.additive_attention import AdditiveAttention
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.decoder_block import DecoderBlock
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.gelu import GELU
from gpulayers.layers.glu import GEGLU, GLU, SwiGLU
from gpulayers.layers.groupnorm import GroupNorm
from gpulayers.layers.gru import GRU, GRUCell
from gpulayers.layers.instancenorm import InstanceNorm
from gpulayers.layers.layer import Layer
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.linear import Linear
from gpulayers.layers.log_softmax import LogSoftmax
from gpulayers.layers.lstm import LSTM, LSTMCell
from gpulayers.layers.multiplicative_attention import MultiplicativeAttention
from gpulayers.layers.positions import LearnedPositions, SinusoidalPositions
from gpulayers.layers.prelu import PReLU
from gpulayers.layers.recompute import Recompute
from gpulayers.layers.relu import ReLU
from gpulayers.layers.residual import Residual
from gpulayers.layers.rmsnorm import RMSNorm
from gpulayers.layers.rnn import RNN, RNNCell
from gpulayers.layers.rotary import Rotary
from gpulayers.layers.sequential import Sequential
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU
from gpulayers.layers.softmax import Softmax
from gpulayers.layers.softmin import Softmin
from gpulayers.layers.tanh import Tanh
from gpulayers.layers.tied_linear import TiedLinear

__all__ = [
    "CELU",
    "ELU",
    "GEGLU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdditiveAttention",
    "BatchNorm",
    "DecoderBlock",
    "Dropout",
    "Embedding",
    "EncoderBlock",
    "FeedForward",
    "GRUCell",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "InstanceNorm",
    "LSTMCell",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "LearnedPositions",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    "PReLU",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Recompute",
    "Residual",
    "Rotary",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalPositions",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softsign",
    "SwiGLU",
    "Tanh",
    "Threshold",
    "TiedLinear",
]
