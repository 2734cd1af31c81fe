"""Sampling text from a model, one token after the other.

    p = softmax(logits of the last position / temperature), cut down by top_k, then by top_p, and scaled to sum 1

Token number i of a text is drawn with random bits that depend on (seed, i) alone, so the same seed writes the same
text. temperature 0 takes the likeliest token.

top_p: Holtzman, Buys, Du, Forbes and Choi, The curious case of neural text degeneration, 2020, section 3.1.
"""

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.backend import device_of, to_device, to_numpy
from gpulayers.data import Tokenizer
from gpulayers.layers.layer import Layer
from gpulayers.random import CALL_BITS, random_bits
from gpulayers.step import Key
from gpulayers.training.options import check, fields, option

SAMPLING_CALL = (1 << CALL_BITS) - 2  # no layer's draws reach it, and the last one is the batches'
WAIT = 16  # tokens that a character may be spread over, at most


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked from its probabilities."""

    temperature: float = option(1.0, "below 1: safer, above 1: wilder, 0: always the likeliest token", at_least=0)
    top_k: int | None = option(None, "draw only from the K likeliest tokens", at_least=1, default_text="all")
    top_p: float | None = option(
        None, "draw only from the likeliest tokens that together reach P", above=0, at_most=1, default_text="all"
    )
    seed: int = option(0, "the same seed writes the same text", at_least=0, at_most=2**63 - 1)

    def checked(self) -> "Sampling":
        """Itself. Raises ConfigError, a ValueError, for a value out of its range."""
        known = fields(self)
        for name, value in vars(self).items():
            if value is not None:
                check(known[name], value, name)
        return self


def generate(
    model: Layer,
    ids: Any,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The `tokens` token ids that the model writes after `ids`.

    ids: at least one id, 1-D. A text longer than the model's context goes on with the last `context` tokens in view.
    Returns int64, (tokens,), in host memory. Raises ValueError for an empty prompt and for options out of range,
    FloatingPointError where the model's logits are NaN or infinite.
    """
    sampling = Sampling(float(temperature), top_k, None if top_p is None else float(top_p), seed)
    return np.fromiter(stream(model, ids, tokens, sampling), np.int64)


def stream(model: Any, ids: Any, tokens: int, sampling: Sampling | None = None) -> Iterator[int]:
    """`generate`, handing out each token as soon as it is drawn."""
    sampling = (sampling or Sampling()).checked()
    window = [operator.index(i) for i in to_numpy(np.asarray(ids) if isinstance(ids, list | tuple) else ids)]
    if not window:
        raise ValueError("generate: the prompt is empty; give at least one token")
    if tokens < 0:
        raise ValueError(f"generate: tokens must be at least 0, got {tokens}")
    return _stream(model, window, tokens, sampling)


def _stream(model: Any, window: list[int], tokens: int, sampling: Sampling) -> Iterator[int]:
    device = device_of(next(model.parameters()).data)
    for i in range(tokens):
        del window[: -model.config.context]
        logits = model(to_device(np.array([window]), device))[0, -1]  # (V,)
        window.append(pick(to_numpy(logits), i, sampling))
        yield window[-1]


def pick(logits: np.ndarray, i: int, sampling: Sampling) -> int:
    """Token number `i` of a text, from its logits (V,)."""
    if not np.isfinite(logits.max()):  # a single -inf is a token that cannot come
        raise FloatingPointError("generate: the model's logits are not finite (NaN or inf)")
    if sampling.temperature == 0:
        return int(logits.argmax())
    cumulated = probabilities(logits, sampling).cumsum()
    return int(np.searchsorted(cumulated, uniform(sampling.seed, i) * cumulated[-1], side="right"))


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """What `pick` draws from: (V,) in float64."""
    z = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature near 0 sends all but the likeliest to -inf
        z = (z - z.max()) / sampling.temperature
    order = np.argsort(-z, kind="stable")  # likeliest first; of equal ones, the lower id
    if sampling.top_k is not None:
        z[order[sampling.top_k :]] = -np.inf
    p = np.exp(z)
    p /= p.sum()
    if sampling.top_p is not None:
        before = p[order].cumsum() - p[order]  # what the likelier tokens have together
        p[order[before >= sampling.top_p]] = 0
        p /= p.sum()
    return p


def uniform(seed: int, i: int) -> float:
    """Draw number `i`, in (0, 1)."""
    bits = int(random_bits(Key(seed, 0, SAMPLING_CALL, first_sample=i), row_size=1, rows=1)[0, 0])
    return (bits + 0.5) / 2**32


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of `ids`, piece by piece; a character that is cut across tokens waits for its end."""
    waiting: list[int] = []
    for token in ids:
        waiting.append(token)
        text = tokenizer.decode(waiting)
        if not text.endswith("\ufffd") or len(waiting) == WAIT:
            yield text
            waiting = []
    if waiting:
        yield tokenizer.decode(waiting)
