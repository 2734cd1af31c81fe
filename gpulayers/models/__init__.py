"""Whole models."""

from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "FeedForwardConfig", "FeedForwardNet", "GPTConfig"]
