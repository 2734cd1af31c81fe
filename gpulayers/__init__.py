"""Deep learning by hand: every layer, loss and optimizer written out, forward and backward, on NumPy or CuPy.

>>> import gpulayers as gl
>>> model = gl.GPT(gl.GPTConfig(vocab=256, context=64), seed=0)
>>> optimizer = gl.AdamW(model, lr=3e-4)
>>> logits, saved = model.forward(ids, gl.Train(seed=0, step=0))
>>> loss, dlogits = gl.cross_entropy(logits, targets)
>>> model.backward(dlogits, saved)
>>> optimizer.step()
"""

from gpulayers import initialize, profiling
from gpulayers.backend import array_module, device_of, to_device, to_numpy, use
from gpulayers.decoding import beam_search, greedy_decode, sample_decode
from gpulayers.gradcheck import GradientError, gradcheck
from gpulayers.layers import (
    GELU,
    GRU,
    LSTM,
    RNN,
    AdditiveAttention,
    BatchNorm,
    DecoderBlock,
    Dropout,
    Embedding,
    EncoderBlock,
    FeedForward,
    GRUCell,
    Layer,
    LayerNorm,
    LeakyReLU,
    LearnedPositions,
    Linear,
    LogSoftmax,
    LSTMCell,
    MultiHeadAttention,
    MultiplicativeAttention,
    PReLU,
    Recompute,
    ReLU,
    Residual,
    RMSNorm,
    RNNCell,
    Rotary,
    Sequential,
    Sigmoid,
    SiLU,
    SinusoidalPositions,
    Softmax,
    Tanh,
    TiedLinear,
)
from gpulayers.layers.summary import summary
from gpulayers.masks import causal_mask, padding_mask
from gpulayers.models import (
    GPT,
    FeedForwardConfig,
    FeedForwardNet,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
)
from gpulayers.ops.binary_cross_entropy import binary_cross_entropy, binary_cross_entropy_with_logits
from gpulayers.ops.cosine_embedding import cosine_embedding_loss
from gpulayers.ops.cross_entropy import count_targets, cross_entropy, cross_entropy_inplace
from gpulayers.ops.hinge_embedding import hinge_embedding_loss
from gpulayers.ops.kl_div import kl_div
from gpulayers.ops.mse import mse_loss
from gpulayers.ops.nll import nll_loss
from gpulayers.ops.regression_losses import huber_loss, l1_loss, smooth_l1_loss
from gpulayers.optim import (
    SGD,
    Adam,
    AdamW,
    Group,
    Optimizer,
    clip_grad_norm,
    clip_grad_value,
    make_optimizer,
    make_schedule,
)
from gpulayers.parameter import Buffer, Parameter, pack
from gpulayers.step import Train
from gpulayers.storage import FileError

__version__ = "0.1.0"

__all__ = [
    "GELU",
    "GPT",
    "GRU",
    "LSTM",
    "RNN",
    "SGD",
    "Adam",
    "AdamW",
    "AdditiveAttention",
    "BatchNorm",
    "Buffer",
    "DecoderBlock",
    "Dropout",
    "Embedding",
    "EncoderBlock",
    "FeedForward",
    "FeedForwardConfig",
    "FeedForwardNet",
    "FileError",
    "GPTConfig",
    "GRUCell",
    "GradientError",
    "Group",
    "LSTMCell",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "LearnedPositions",
    "Linear",
    "LogSoftmax",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    "Optimizer",
    "PReLU",
    "Parameter",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Recompute",
    "Residual",
    "Rotary",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalPositions",
    "Softmax",
    "Tanh",
    "TiedLinear",
    "Train",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "array_module",
    "beam_search",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "causal_mask",
    "clip_grad_norm",
    "clip_grad_value",
    "cosine_embedding_loss",
    "count_targets",
    "cross_entropy",
    "cross_entropy_inplace",
    "device_of",
    "gradcheck",
    "greedy_decode",
    "hinge_embedding_loss",
    "huber_loss",
    "initialize",
    "kl_div",
    "l1_loss",
    "make_optimizer",
    "make_schedule",
    "mse_loss",
    "nll_loss",
    "pack",
    "padding_mask",
    "profiling",
    "sample_decode",
    "smooth_l1_loss",
    "summary",
    "to_device",
    "to_numpy",
    "use",
]
