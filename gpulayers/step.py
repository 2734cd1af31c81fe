"""The `train` object: what one training pass has to know, in one argument."""

import copy
from operator import index
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, is_array


class Key(NamedTuple):
    """Names one stream of random bits: the generator's key (seed, step, call) and the first sample's global index.

    step: an int, or a number in device memory, see `Train`.
    """

    seed: int
    step: Any
    call: int
    first_sample: int


class Train:
    """Given to `forward` as `train=`, it says "this is training" and where the random bits of the pass come from.

    seed: of the run. step: index of the batch; or an array of it, uint64, shape (1,), on a GPU. Kernels read the step
    there, so that a captured graph, whose replays see the same `Train`, draws new bits when the array has gone up by
    one. It must hold still from the forward to the backward pass. first_sample: index of the first sample of this
    (micro-)batch in the whole batch of the step over all micro-batches, threads and ranks. Every random draw takes the
    next call index, so the same pass draws the same bits whatever the batch is split into.
    """

    def __init__(self, seed: int = 0, step: int | Array = 0, first_sample: int = 0) -> None:
        there: Array = step if is_array(step) and array_module(step) is not np else None
        if there is not None and (there.shape != (1,) or there.dtype != np.uint64):
            raise TypeError(f"Train: a step on a device must be uint64 of shape (1,), got {there.dtype} {there.shape}")
        number: Any = 0 if there is not None else step
        for name, value, bits in (("seed", seed, 64), ("step", number, 40), ("first_sample", first_sample, 48)):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"Train: {name} must be in 0..2^{bits} - 1, got {value}")
        self.seed, self.first_sample = index(seed), index(first_sample)
        self.step: Any = index(number) if there is None else there
        self.position = 0

    def draw(self) -> Key:
        """The key of the next random draw in this pass."""
        self.position += 1
        return Key(self.seed, self.step, self.position - 1, self.first_sample)

    def snapshot(self) -> "Train":
        """A copy at the same position: a forward pass run again from it draws the same bits."""
        return copy.copy(self)

    def __repr__(self) -> str:
        step = "<on the device>" if is_array(self.step) else self.step  # which reading would wait for
        return f"Train(seed={self.seed}, step={step}, first_sample={self.first_sample}, position={self.position})"
