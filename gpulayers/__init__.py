"""Deep learning by hand: every layer, loss and optimizer written out, forward and backward, on NumPy or CuPy.

>>> import gpulayers as gl
>>> model = gl.GPT(gl.GPTConfig(vocab=256, context=64), seed=0)
>>> optimizer = gl.AdamW(model, lr=3e-4)
>>> logits, saved = model.forward(ids, gl.Train(seed=0, step=0))
>>> loss, dlogits = gl.cross_entropy(logits, targets)
>>> model.backward(dlogits, saved)
>>> optimizer.step()
"""

import importlib
from typing import TYPE_CHECKING, Any

from gpulayers import initialize, profiling
from gpulayers.backend import array_module, device_of, to_device, to_numpy, use
from gpulayers.functions import one_hot, pad_sequences, top_k, top_k_backward
from gpulayers.gradcheck import GradientError, gradcheck
from gpulayers.layers import (
    CELU,
    ELU,
    GEGLU,
    GELU,
    GLU,
    GRU,
    LSTM,
    RNN,
    SELU,
    AdditiveAttention,
    BatchNorm,
    DecoderBlock,
    Dropout,
    Embedding,
    EncoderBlock,
    FeedForward,
    GroupNorm,
    GRUCell,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    InstanceNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    LearnedPositions,
    Linear,
    LogSigmoid,
    LogSoftmax,
    LSTMCell,
    Mish,
    MultiHeadAttention,
    MultiplicativeAttention,
    PReLU,
    Recompute,
    ReLU,
    ReLU6,
    Residual,
    RMSNorm,
    RNNCell,
    Rotary,
    Sequential,
    Sigmoid,
    SiLU,
    SinusoidalPositions,
    Softmax,
    Softmin,
    Softplus,
    Softsign,
    SwiGLU,
    Tanh,
    Threshold,
    TiedLinear,
)
from gpulayers.layers.scaled_dot_product_attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from gpulayers.layers.summary import summary
from gpulayers.masks import causal_mask, padding_mask
from gpulayers.ops.binary_cross_entropy import binary_cross_entropy, binary_cross_entropy_with_logits
from gpulayers.ops.cosine_embedding import cosine_embedding_loss
from gpulayers.ops.cross_entropy import count_targets, cross_entropy, cross_entropy_inplace
from gpulayers.ops.hinge_embedding import hinge_embedding_loss
from gpulayers.ops.kl_div import kl_div
from gpulayers.ops.mse import mse_loss
from gpulayers.ops.nll import nll_loss
from gpulayers.ops.regression_losses import huber_loss, l1_loss, smooth_l1_loss
from gpulayers.optim import (
    ASGD,
    EMA,
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Group,
    Lion,
    Muon,
    NAdam,
    Optimizer,
    Plateau,
    RAdam,
    RMSprop,
    Rprop,
    clip_grad_norm,
    clip_grad_norm_per_parameter,
    clip_grad_value,
    grad_norm,
    make_optimizer,
    make_schedule,
)
from gpulayers.parameter import Buffer, Parameter, pack
from gpulayers.step import Train
from gpulayers.storage import FileError

if TYPE_CHECKING:
    from gpulayers import parallel, torch_map
    from gpulayers.decoding import beam_search, greedy_decode, sample_decode
    from gpulayers.models import (
        GPT,
        Continuation,
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
    from gpulayers.sampling import Sampling
    from gpulayers.training.generate import generate, generate_batch, stream, stream_batch, write

__version__ = "0.1.0"

__all__ = [
    "ASGD",
    "CELU",
    "ELU",
    "EMA",
    "GEGLU",
    "GELU",
    "GLU",
    "GPT",
    "GRU",
    "LAMB",
    "LSTM",
    "RNN",
    "SELU",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "AdditiveAttention",
    "BatchNorm",
    "Buffer",
    "Continuation",
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
    "Lion",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    "Muon",
    "NAdam",
    "Optimizer",
    "PReLU",
    "Parameter",
    "Plateau",
    "RAdam",
    "RMSNorm",
    "RMSprop",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Recompute",
    "Residual",
    "Rotary",
    "Rprop",
    "Sampling",
    "Seq2Seq",
    "Seq2SeqConfig",
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
    "clip_grad_norm_per_parameter",
    "clip_grad_value",
    "cosine_embedding_loss",
    "count_targets",
    "cross_entropy",
    "cross_entropy_inplace",
    "device_of",
    "generate",
    "generate_batch",
    "grad_norm",
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
    "one_hot",
    "pack",
    "pad_sequences",
    "padding_mask",
    "parallel",
    "profiling",
    "sample_decode",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "smooth_l1_loss",
    "stream",
    "stream_batch",
    "summary",
    "to_device",
    "to_numpy",
    "top_k",
    "top_k_backward",
    "torch_map",
    "use",
    "write",
]

# Whole models and what is done with them are imported when they are first asked for: it is a third of the time that
# `import gpulayers` would take. The names of each module here, and above for type checkers.
LATER_MODULES = ("data", "decoding", "models", "parallel", "sampling", "torch_map", "training")
LATER = {
    "gpulayers.decoding": ("beam_search", "greedy_decode", "sample_decode"),
    "gpulayers.models": (
        "GPT",
        "Continuation",
        "FeedForwardConfig",
        "FeedForwardNet",
        "GPTConfig",
        "Seq2Seq",
        "Seq2SeqConfig",
        "Transformer",
        "TransformerConfig",
        "ViT",
        "ViTConfig",
    ),
    "gpulayers.sampling": ("Sampling",),
    "gpulayers.training.generate": ("generate", "generate_batch", "stream", "stream_batch", "write"),
}


def __getattr__(name: str) -> Any:
    if name in LATER_MODULES:
        return importlib.import_module(f"gpulayers.{name}")
    for module, names in LATER.items():
        if name in names:
            globals()[name] = value = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'gpulayers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
