"""Images to train on and to measure on: the split, the normalisation, the batches of an epoch."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpulayers.data.batches import DATA_CALL
from gpulayers.random import philox
from gpulayers.step import Key

SPLIT_CALL = DATA_CALL - 1  # that of gpulayers/sampling.py: what draws texts has no images to split
HELD_OUT = 5  # one in so many

Pair = tuple[np.ndarray, np.ndarray]


def split_classes(labels: np.ndarray, seed: int) -> Pair:
    """(training indices, held-out indices), both ascending: a fifth of each class is held out, drawn from the seed.

    A fifth is rounded, and at least 1; a class of one image stays in the training part.
    """
    held_out = []
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label)
        count = min(max(1, (len(members) + HELD_OUT // 2) // HELD_OUT), len(members) - 1)
        held_out.append(members[_shuffled(len(members), Key(seed, label, SPLIT_CALL, 0))[:count]])
    chosen = np.zeros(len(labels), bool)
    chosen[np.concatenate(held_out)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _shuffled(count: int, key: Key) -> np.ndarray:
    """0..count-1 in an order that the key alone decides: raw Philox words are the same in every version of NumPy."""
    return np.argsort(philox(key, 0).random_raw(count), kind="stable")


class Normalization(NamedTuple):
    """(pixels - mean) / std for each channel."""

    mean: list[float]
    std: list[float]

    @classmethod
    def of(cls, pixels: np.ndarray) -> "Normalization":
        """Mean and standard deviation over all pixels of a channel, (N, H, W, C); 1 for a channel of one value."""
        mean = pixels.mean(axis=(0, 1, 2), dtype=np.float64)
        std = pixels.std(axis=(0, 1, 2), dtype=np.float64)
        return cls(mean.tolist(), [value if value > 1e-6 else 1.0 for value in std.tolist()])

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """float32, (N, H, W, C)."""
        return (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)


class ImageBatches:
    """Batches of an endless row of epochs, each epoch being all images in an order of its own.

    Batch k is a pure function of the arguments and k: nothing to save, nothing to seek. It may begin in one epoch and
    end in the next.
    """

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, batch: int, seed: int) -> None:
        """pixels: (N, H, W, C). labels: (N,)."""
        if not len(pixels) == len(labels) > 0:
            raise ValueError(f"ImageBatches takes as many images as labels, got {len(pixels)} and {len(labels)}")
        if batch < 1:
            raise ValueError(f"ImageBatches: batch must be at least 1, got {batch}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"ImageBatches: seed must be in 0..2^64 - 1, got {seed}")
        self.pixels, self.labels = pixels, labels
        self.batch_size, self.seed = batch, seed

    def indices(self, k: int) -> np.ndarray:
        """Which images make up batch k, (batch,)."""
        count = len(self.labels)
        place = np.arange(k * self.batch_size, (k + 1) * self.batch_size)
        epochs, found = place // count, np.empty(self.batch_size, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            found[here] = _shuffled(count, Key(self.seed, epoch, DATA_CALL, 0))[place[here] % count]
        return found

    def batch(self, k: int) -> Pair:
        """Batch k: (pixels (batch, H, W, C), labels (batch,))."""
        chosen = self.indices(k)
        return self.pixels[chosen], self.labels[chosen]

    def micro_batches(self, k: int, accumulate: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Batch k in `accumulate` parts of nearly equal size: (index of the part's first image, pixels, labels)."""
        if not 1 <= accumulate <= self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} images cannot be split in {accumulate} parts")
        pixels, labels = self.batch(k)
        for start, stop in pairwise(self.batch_size * i // accumulate for i in range(accumulate + 1)):
            yield start, pixels[start:stop], labels[start:stop]
