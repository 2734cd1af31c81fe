"""A sequence-to-sequence model with its vocabularies: texts in, texts out, and how often they are right."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, device_of, to_device, to_numpy
from gpulayers.data import IGNORE
from gpulayers.data.pairs import BOS, EOS, PAD, Pair, Vocabulary, encode_pairs, encode_sources
from gpulayers.decoding import Decoded, greedy_decode
from gpulayers.ops.cross_entropy import cross_entropy_inplace


class Measured(NamedTuple):
    """loss: nats a token of the targets, eos included, each predicted from the true ones before it.
    accuracy: share of the pairs whose greedy answer is the target, symbol for symbol."""

    loss: float
    accuracy: float


class Look(NamedTuple):
    """Where a model looked while it answered: weights (T, S), a row for each symbol of the answer, rows sum to 1."""

    source: list[str]
    answer: list[str]
    weights: np.ndarray


class Translator:
    """model: with `start`, `step` and `attention`. vocabularies: of the sources and of the targets."""

    def __init__(self, model: Any, vocabularies: tuple[Vocabulary, Vocabulary]) -> None:
        self.model, self.vocabularies = model, vocabularies

    def answers(self, texts: Sequence[str], decode: Callable[[Any, Array], Decoded] = greedy_decode) -> list[str]:
        """One text for each. Raises FloatingPointError where the model's logits are not finite."""
        ids = decode(self.model, self._there(encode_sources(texts, self.vocabularies[0]))).ids
        return [self.vocabularies[1].decode(row) for row in ids.tolist()]

    def measure(self, pairs: Sequence[Pair], batch: int) -> Measured:
        """batch: pairs at a time. A model whose logits are not finite is never right."""
        total, tokens, right = 0.0, 0, 0
        for start in range(0, len(pairs), batch):
            part = pairs[start : start + batch]
            source, inputs, targets = encode_pairs(part, self.vocabularies)
            logits = self.model(self._there(source), self._there(inputs))  # (B, T, V)
            total += float(cross_entropy_inplace(logits, self._there(targets), reduction="sum")[0])
            tokens += int((targets != IGNORE).sum())
            right += self._right(part, longest=targets.shape[1])
        return Measured(total / max(tokens, 1), right / max(len(pairs), 1))

    def _right(self, pairs: Sequence[Pair], longest: int) -> int:
        """longest: ids of the longest target; an answer that is longer is wrong already."""
        try:
            answers = self.answers([p.source for p in pairs], lambda model, x: greedy_decode(model, x, longest))
        except FloatingPointError:
            return 0
        return sum(a == self.vocabularies[1].normal(p.target) for a, p in zip(answers, pairs, strict=True))

    def look(self, text: str) -> Look:
        """Answer `text` and watch; of several heads, their mean. Raises FloatingPointError, ValueError."""
        source = encode_sources([text], self.vocabularies[0])
        ids = greedy_decode(self.model, self._there(source)).ids
        inputs = np.concatenate([np.full((1, 1), BOS), ids[:, :-1]], axis=1)
        weights = to_numpy(self.model.attention(self._there(source), self._there(inputs)))[0].astype(np.float64)
        weights = weights.mean(axis=0) if weights.ndim == 3 else weights  # (T, S)
        first, second = self.vocabularies
        return Look(self._names(first, source[0]), self._names(second, ids[0]), weights)

    def _names(self, vocabulary: Vocabulary, ids: np.ndarray) -> list[str]:
        """A name for each id."""
        names = {PAD: "pad", BOS: "begin", EOS: "end"}
        return [names[i] if i in names else vocabulary.decode([i]) for i in ids.tolist()]

    def _there(self, ids: np.ndarray) -> Array:
        return to_device(ids, device_of(next(self.model.parameters()).data))
