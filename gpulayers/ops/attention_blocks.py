"""How attention on the CPU is cut into blocks, and the masks and random bits of a block.

A few heads of one sample and a block of queries at a time, so that the scores stay in cache; of short sequences as many
samples as fit, since a call for each would cost more than its work.

Shapes: scores (n, K, G, t, s), with n samples, K key heads, each for G query heads, t queries and s keys.
"""

import functools
from collections.abc import Iterator

import numpy as np

from gpulayers.backend import Array
from gpulayers.masks import causal_mask
from gpulayers.ops.masked_softmax import hidden_entries
from gpulayers.random import keep_threshold, random_bits
from gpulayers.step import Key

SCORES = 1 << 17  # elements of one block of scores: it and the work array of backward fill a 1 MB L2 cache
QUERIES = 128  # at most in a block; half of it in short causal ones, which then skip more of the hidden half


def query_blocks(T: int, S: int, K: int, G: int, causal: bool) -> Iterator[tuple[slice, slice, int]]:
    """(key and value heads, queries, number of keys that the last of these queries sees), the last queries first."""
    t = min(T, QUERIES // 2 if causal and T <= 2 * QUERIES else QUERIES)
    heads = max(1, SCORES // (t * S * G))
    for head in range(0, K, heads):
        for start in range((T - 1) // t * t, -1, -t):
            stop = min(start + t, T)
            yield slice(head, min(head + heads, K)), slice(start, stop), max(0, stop + S - T) if causal else S


def sample_groups(B: int, H: int, T: int, S: int) -> Iterator[slice]:
    """The samples that go together: one, or as many as have their scores in one block."""
    if T and S:
        step = max(1, SCORES // (H * T * S))
        yield from (slice(n, min(n + step, B)) for n in range(0, B, step))


class Mask:
    """What masks hide, as a bias: -inf where a score is hidden, 0 elsewhere. `bias`: the last one that was made."""

    def __init__(self, hide: Array, causal: bool, T: int, S: int) -> None:
        """hide: broadcastable to (B, H, T, S), or None."""
        self.hidden, self.bias = None, None
        if hide is not None:
            hidden = hidden_entries(hide, causal, T, S, like=None)
            self.hidden = hidden.reshape((1,) * (4 - hidden.ndim) + hidden.shape)
        elif causal:
            self.bias = _causal_bias(T, S)

    def of(self, samples: slice, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """That of these samples, (n or 1, K or 1, G or 1, T, S), or None. shape: that of their scores."""
        if self.hidden is None or (self.bias is not None and len(self.hidden) == 1):  # that of all samples
            return self.bias
        part = self.hidden[samples] if len(self.hidden) > 1 else self.hidden
        bias = np.where(part, dtype.type(-np.inf), dtype.type(0))
        n, heads = bias.shape[:2]
        bias = bias.reshape(n, *(shape[1:3] if heads > 1 else (1, 1)), *bias.shape[2:])
        self.bias = np.broadcast_to(bias, (*bias.shape[:3], *shape[3:]))
        return self.bias


KEPT = 1 << 20  # entries of a causal bias that is kept, 4 MB: four of 8192 x 8192 would hold 1 GB for ever


def _causal_bias(T: int, S: int) -> np.ndarray:
    """The same, of the causal mask alone: (1, 1, 1, T, S). Kept: a step of equal layers needs one, and to make it takes
    as long as the exponentials of two heads."""
    return (_kept_causal_bias if T * S <= KEPT else _make_causal_bias)(T, S)


def _make_causal_bias(T: int, S: int) -> np.ndarray:
    bias = np.where(causal_mask(T, S), np.float32(-np.inf), np.float32(0))[None, None, None]
    bias.flags.writeable = False
    return bias


_kept_causal_bias = functools.lru_cache(4)(_make_causal_bias)


def keep_of(key: Key | None, p: float, samples: slice, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which weights of these samples stay: boolean, `shape` = (n, K, G, T, S)."""
    if not p:
        return None
    assert key is not None, "attention: p > 0 needs the key of a random draw"
    key = key._replace(first_sample=key.first_sample + samples.start)
    return (random_bits(key, int(np.prod(shape[1:])), shape[0]) >= keep_threshold(p)).reshape(shape)


def part_of(bias: np.ndarray | None, heads: slice, rows: slice, seen: int) -> np.ndarray | None:
    """The block of a bias (n or 1, K or 1, G or 1, T, S)."""
    return None if bias is None else bias[:, heads if bias.shape[1] > 1 else slice(None), :, rows, :seen]
