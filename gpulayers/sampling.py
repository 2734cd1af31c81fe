"""Drawing a token from a model's logits.

    p = softmax(logits / temperature), cut down by top_k, then by top_p, and scaled to sum 1

Token number i of text number `row` is drawn with random bits that depend on (seed, row, i) alone, so the same seed
writes the same text, whatever is written beside it. temperature 0 takes the likeliest token.

top_p: Holtzman, Buys, Du, Forbes and Choi, The curious case of neural text degeneration, 2020, section 3.1.
"""

from dataclasses import dataclass

import numpy as np

from gpulayers.random import CALL_BITS, random_bits
from gpulayers.step import Key
from gpulayers.training.options import check, fields, option

SAMPLING_CALL = (1 << CALL_BITS) - 2  # no layer's draws reach it, and the last one is the batches'


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


def pick(logits: np.ndarray, i: int, sampling: Sampling, row: int = 0) -> int:
    """Token number `i` of text number `row`, from its logits (V,)."""
    if not np.isfinite(logits.max()):  # a single -inf is a token that cannot come
        raise FloatingPointError("generate: the model's logits are not finite (NaN or inf)")
    if sampling.temperature == 0:
        return int(logits.argmax())
    cumulated = probabilities(logits, sampling).cumsum()
    return int(np.searchsorted(cumulated, uniform(sampling.seed, i, row) * cumulated[-1], side="right"))


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


def uniform(seed: int, i: int, row: int = 0) -> float:
    """Draw number `i` for text number `row`, in (0, 1)."""
    bits = int(random_bits(Key(seed, row, SAMPLING_CALL, first_sample=i), row_size=1, rows=1)[0, 0])
    return (bits + 0.5) / 2**32
