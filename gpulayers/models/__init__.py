"""Whole models."""

from gpulayers.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig"]
