"""Windows of a text: random ones to train on, and ones that cover a text once to measure on.

Both give `(ids, targets)`, int64 (batch, context): targets are the ids one position further on.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from gpulayers.data.text import Corpus, DataError
from gpulayers.data.tokenizers import Tokenizer
from gpulayers.random import CALL_BITS, philox
from gpulayers.step import Key

IGNORE = -100  # target of a position that is not scored; `cross_entropy`'s default ignore_index
DATA_CALL = (1 << CALL_BITS) - 1  # the last call index of a step: dropout counts up from 0 and never gets here

Pair = tuple[np.ndarray, np.ndarray]


def encode_split(corpus: Corpus, tokenizer: Tokenizer) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(training tokens, validation tokens), one array per file.

    Each validation array begins with the last training token of its file: it is what the first validation token is
    predicted from, and is not scored itself, so `validation_windows` scores exactly the validation text.
    """
    train, validation = ([tokenizer.encode(text) for text in texts] for texts in corpus.split())
    return train, [np.concatenate([before[-1:], part]) for before, part in zip(train, validation, strict=True)]


class Batches:
    """Random windows. Batch k is a pure function of the arguments and k: nothing to save, nothing to seek.

    Every window of context + 1 tokens that lies within one file is equally likely.
    """

    def __init__(
        self,
        tokens: Sequence[np.ndarray],
        context: int,
        batch: int,
        seed: int,
        names: Sequence[str] | None = None,
    ) -> None:
        """tokens: one array per file; names: of the files, for the error. Raises DataError if one is too short."""
        if context < 1 or batch < 1:
            raise ValueError(f"Batches: context and batch must be at least 1, got {context} and {batch}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"Batches: seed must be in 0..2^64 - 1, got {seed}")
        names = names or [f"text {i + 1}" for i in range(len(tokens))]
        for name, part in zip(names, tokens, strict=True):
            if len(part) <= context:
                raise DataError(
                    f"{name} is too short: its training part has {len(part)} tokens, "
                    f"a context of {context} needs at least {context + 1}"
                )
        if not tokens:
            raise DataError("there is no text to train on")
        self.context, self.batch_size, self.seed = context, batch, seed
        self._tokens = tokens  # they may be mapped from a file: only what a batch needs is read
        windows = np.array([len(part) - context for part in tokens])
        self._last = np.cumsum(windows)  # number of windows in this file and those before it
        self.windows = int(self._last[-1])

    def batch(self, k: int, start: int = 0, stop: int | None = None) -> Pair:
        """Samples start to stop (all by default) of batch k."""
        # 64 random bits r to a window number: floor(r * windows / 2^64). Raw Philox words are the same in every
        # version of NumPy, which `Generator.integers` does not promise.
        words = philox(Key(self.seed, k, DATA_CALL, 0), 0).random_raw(self.batch_size)[start:stop]
        window = np.array([int(word) * self.windows >> 64 for word in words], np.int64)
        files = np.searchsorted(self._last, window, side="right")
        both = np.empty((len(window), self.context + 1), np.int64)
        for row, file in enumerate(files.tolist()):
            first = int(window[row]) - (int(self._last[file - 1]) if file else 0)
            both[row] = self._tokens[file][first : first + self.context + 1]
        return np.ascontiguousarray(both[:, :-1]), np.ascontiguousarray(both[:, 1:])

    def micro_batches(self, k: int, accumulate: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Batch k in `accumulate` parts of nearly equal size: (index of the part's first sample, ids, targets)."""
        if not 1 <= accumulate <= self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} samples cannot be split in {accumulate} parts")
        bounds = [self.batch_size * i // accumulate for i in range(accumulate + 1)]
        ids, targets = self.batch(k)
        for start, stop in pairwise(bounds):
            yield start, ids[start:stop], targets[start:stop]


def validation_windows(
    tokens: Sequence[np.ndarray], context: int, batch: int, limit: int | None = None
) -> Iterator[Pair]:
    """Windows side by side that score every token but the first of each array exactly once, in batches.

    The end of an array is padded: ids 0, targets IGNORE. The last batch may have fewer rows. limit: at most so many
    windows, spread evenly over all, for a quick look. Raises DataError if there is nothing to score.
    """
    if context < 1 or batch < 1 or (limit is not None and limit < 1):
        raise ValueError(f"validation_windows: sizes must be at least 1, got {context=}, {batch=}, {limit=}")
    windows = [max(0, -(-(len(part) - 1) // context)) for part in tokens]
    every = sum(windows)
    if not every:
        raise DataError(f"the validation part is too short: {sum(map(len, tokens))} tokens, at least 2 are needed")
    count = every if limit is None else min(limit, every)
    return _windows(tokens, np.cumsum(windows), [i * every // count for i in range(count)], context, batch)


def _windows(
    tokens: Sequence[np.ndarray], last: np.ndarray, chosen: list[int], context: int, batch: int
) -> Iterator[Pair]:
    """last: number of windows in each array and those before it. chosen: numbers of windows."""
    for first in range(0, len(chosen), batch):
        rows = chosen[first : first + batch]
        ids = np.zeros((len(rows), context), np.int64)
        targets = np.full((len(rows), context), IGNORE, np.int64)
        for row, number in enumerate(rows):
            file = int(np.searchsorted(last, number, side="right"))
            start = context * (number - (int(last[file - 1]) if file else 0))
            window = tokens[file][start : start + context + 1]
            ids[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        yield ids, targets
