"""Whole models."""

from gpulayers.models.continuation import Continuation
from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.models.vit import ViT, ViTConfig

__all__ = [
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
]
