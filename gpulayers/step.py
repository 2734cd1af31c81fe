"""The `train` object: what one training pass has to know, in one argument."""

import copy
from operator import index
from typing import NamedTuple


class Key(NamedTuple):
    """Names one stream of random bits: the generator's key (seed, step, call) and the first sample's global index."""

    seed: int
    step: int
    call: int
    first_sample: int


class Train:
    """Given to `forward` as `train=`, it says "this is training" and where the random bits of the pass come from.

    seed: of the run. step: index of the batch. first_sample: index of the first sample of this (micro-)batch in the
    whole batch of the step over all micro-batches, threads and ranks. Every random draw takes the next call index, so
    the same pass draws the same bits whatever the batch is split into.
    """

    def __init__(self, seed: int = 0, step: int = 0, first_sample: int = 0) -> None:
        for name, value, bits in (("seed", seed, 64), ("step", step, 40), ("first_sample", first_sample, 48)):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"Train: {name} must be in 0..2^{bits} - 1, got {value}")
        self.seed, self.step, self.first_sample = index(seed), index(step), index(first_sample)
        self.position = 0

    def draw(self) -> Key:
        """The key of the next random draw in this pass."""
        self.position += 1
        return Key(self.seed, self.step, self.position - 1, self.first_sample)

    def snapshot(self) -> "Train":
        """A copy at the same position: a forward pass run again from it draws the same bits."""
        return copy.copy(self)

    def __repr__(self) -> str:
        return f"Train(seed={self.seed}, step={self.step}, first_sample={self.first_sample}, position={self.position})"
