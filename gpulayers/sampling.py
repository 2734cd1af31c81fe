"""Drawing a token from a model's logits.

    z = logits, but for tokens that the text has already: logits / penalty where above 0, logits penalty below
    p = softmax(z / temperature), cut down by top_k, then by top_p, and scaled to sum 1

Token number i of text number `row` is drawn with random bits that depend on (seed, row, i) alone, so the same seed
writes the same text, whatever is written beside it. temperature 0 takes the likeliest token.

repetition_penalty: Keskar, McCann, Varshney, Xiong and Socher, CTRL, 2019, section 4.1, with the product below 0, where
the paper's quotient would make a token likelier; once for a token, however often it stands in the text.
top_p: Holtzman, Buys, Du, Forbes and Choi, The curious case of neural text degeneration, 2020, section 3.1.
"""

from dataclasses import dataclass

import numpy as np

from gpulayers.backend import wide
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
    repetition_penalty: float = option(
        1.0, "above 1: what the text has already becomes less likely", at_least=1e-6, at_most=1e6
    )

    def checked(self) -> "Sampling":
        """Itself. Raises ConfigError, a ValueError, for a value out of its range."""
        known = fields(self)
        for name, value in vars(self).items():
            if value is not None:
                check(known[name], value, name)
        return self


def pick(logits: np.ndarray, i: int, sampling: Sampling, row: int = 0, seen: np.ndarray | None = None) -> int:
    """Token number `i` of text number `row`, from its logits (V,). seen: ids of the text so far, for the penalty."""
    if not np.isfinite(logits.max()):  # a single -inf is a token that cannot come
        raise FloatingPointError("generate: the model's logits are not finite (NaN or inf)")
    if seen is not None and sampling.repetition_penalty != 1:
        logits = penalised(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return int(logits.argmax())
    cumulated = probabilities(logits, sampling).cumsum()
    return int(np.searchsorted(cumulated, uniform(sampling.seed, i, row) * cumulated[-1], side="right"))


def penalised(logits: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """`logits` with those of the ids `seen` divided by the penalty where above 0, multiplied by it below."""
    logits = logits.astype(wide(logits.dtype))  # a copy
    z = logits[seen]
    logits[seen] = np.where(z < 0, z * penalty, z / penalty)
    return logits


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """What `pick` draws from: (V,) in float64."""
    z = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature near 0 sends all but the likeliest to -inf
        z = (z - z.max()) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(z):
        kept = likeliest(z, sampling.top_k)
        z, logits = np.full_like(z, -np.inf), z
        z[kept] = logits[kept]
    p = np.exp(z)
    p /= p.sum()
    if sampling.top_p is not None and sampling.top_p < 1:
        p = nucleus(p, sampling.top_p)
    return p


def likeliest(z: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` largest values stand, largest first; of equal ones, the lower index. count < len(z)."""
    least = np.partition(z, -count)[-count]
    found = np.flatnonzero(z >= least)
    return found[np.argsort(-z[found], kind="stable")][:count]


def nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    """p of the likeliest tokens that together reach top_p, scaled to sum 1; 0 elsewhere.

    Sorting a whole vocabulary takes longer than the rest of `pick`; mostly the first few hundred tokens will do.
    """
    count = min(len(p), 256)
    while True:
        order = likeliest(p, count) if count < len(p) else np.argsort(-p, kind="stable")
        cumulated = p[order].cumsum()
        if count == len(p) or cumulated[-1] >= top_p:
            break
        count = min(len(p), 8 * count)
    kept = order[cumulated - p[order] < top_p]  # by what the likelier tokens have together
    found = np.zeros_like(p)
    found[kept] = p[kept] / p[kept].sum()
    return found


def uniform(seed: int, i: int, row: int = 0) -> float:
    """Draw number `i` for text number `row`, in (0, 1)."""
    bits = int(random_bits(Key(seed, row, SAMPLING_CALL, first_sample=i), row_size=1, rows=1)[0, 0])
    return (bits + 0.5) / 2**32
