"""How well a model predicts a text, in three units.

loss = mean of -log p(token | tokens before it in its window)        nats a token
perplexity = exp(loss)           bits per byte = total loss / log 2 / bytes of the text
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpulayers.backend import device_of, to_device
from gpulayers.data import IGNORE, Tokenizer
from gpulayers.layers.layer import Layer
from gpulayers.ops.cross_entropy import cross_entropy_inplace


@dataclass(frozen=True)
class Measurement:
    """total: nats over all tokens. tokens: how many were predicted. bytes: of their text in UTF-8."""

    total: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.total / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        return self.total / math.log(2) / self.bytes


def evaluate(model: Layer, batches: Iterable[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer) -> Measurement:
    """Measure `model` on (ids, targets) batches, (B, T) each; targets that are IGNORE do not count."""
    device = device_of(next(model.parameters()).data)
    total, tokens, size = 0.0, 0, 0
    for ids, targets in batches:
        logits = model(to_device(ids, device))  # (B, T, V)
        loss, _ = cross_entropy_inplace(logits, to_device(targets, device), ignore_index=IGNORE, reduction="sum")
        total += float(loss)
        counted = targets[targets != IGNORE]
        tokens += counted.size
        size += tokenizer.byte_count(counted)  # not the text's: a window may cut a character in two
    return Measurement(total, tokens, size)
