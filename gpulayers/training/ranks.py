"""`Ranks`: a step's batch in pieces on several processes, each with the whole model; all take the same step.

    ranks = Ranks(model, connect())
    train_step(model, optimizer, ranks.share(parts), seed, k, ranks=ranks)

Every part of a batch is cut into as many pieces as there are ranks, in order; a rank may get none. Each rank sums loss,
count and gradients over its pieces, and `all_reduce` sums them over the ranks. So what a step divides by, the norm that
it clips by, and whether it is skipped are the same everywhere, and all ranks hold the same bits as ever.

What differs from one process with the whole batch is the order of the sums: there one matrix product sums over all
samples, here over a rank's, and then the ranks' sums are added. That is rounding. Batches and dropout do not differ:
both are functions of seed, step and the sample's place in the whole batch.

BatchNorm normalises by the statistics of a rank's piece, as it does by those of a part with --accumulate. Its running
statistics are those of whole parts: `pool_statistics`.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, to_numpy, zeros
from gpulayers.cuda import error_flag
from gpulayers.layers.batchnorm import BatchNorm, Update
from gpulayers.layers.layer import Layer
from gpulayers.parallel import ALONE, Communicator, ParallelError, together
from gpulayers.parameter import Buffer, Flat
from gpulayers.training.options import ConfigError
from gpulayers.training.tasks.task import Part
from gpulayers.training.threads import cut


class Ranks:
    """The ranks that train `model`. Alone, every method gives back what it gets."""

    def __init__(self, model: Layer, communicator: Communicator = ALONE) -> None:
        self.communicator, self.rank, self.size = communicator, communicator.rank, communicator.size
        layers = (layer for _, layer in (("", model), *model.named_layers()))
        means = (layer.running_mean for layer in layers if isinstance(layer, BatchNorm))
        self._statistics = [buffer for buffer in means if buffer is not None]

    def check_parts(self, training: Any) -> None:
        """Raises ConfigError where a rank would have too few samples for BatchNorm's statistics."""
        batch, parts = training.batch, training.accumulate
        if self.size > 1 and self._statistics and batch // parts // self.size < 2:
            raise ConfigError(
                f"BatchNorm needs 2 samples in every rank's piece, got a batch of {batch} in {parts} parts on "
                f"{self.size} ranks"
            )

    def share(self, parts: Iterable[Part]) -> Iterator[Part]:
        """This rank's piece of every part that has one for it."""
        for part in parts:
            yield from cut(part, self.size)[self.rank : self.rank + 1] if self.size > 1 else [part]

    def all_reduce(self, flat: Flat, loss: Any, count: Any) -> tuple[Any, Any]:
        """Sums over all ranks: of the gradients, in place; of loss and count, which are returned. Does not wait for a
        GPU.

        A GPU that has met a target or id out of range makes the loss NaN, for then all ranks have to skip the step.
        """
        return (loss, count) if self.size == 1 else self._all_reduce(flat, loss, count)

    def _all_reduce(self, flat: Flat, loss: Any, count: Any) -> tuple[Any, Any]:
        self.communicator.all_reduce(flat.grad)
        sums = zeros(2, np.float64, like=flat.data)
        sums[0], sums[1] = loss, count
        xp = array_module(sums)
        if xp is not np:
            sums[:1] += xp.where(error_flag(sums)[:1] != 0, np.nan, 0.0)
        self.communicator.all_reduce(sums)
        if self._statistics:
            pool_statistics(self._statistics, self.communicator)
        return sums[:1].reshape(()), sums[1:].reshape(())

    def largest(self, number: int) -> int:
        """Of the numbers of all ranks."""
        return int(self.communicator.gather(number).max()) if self.size > 1 else number

    def check_same(self, parameters: Array, step: int) -> None:
        """Raises ParallelError, on all ranks, where they do not hold the same bits any more."""
        if self.size == 1:
            return
        sums = self.communicator.gather(zlib.crc32(to_numpy(parameters).view(np.uint8).data))
        with together(self.communicator):
            if others := np.flatnonzero(sums != sums[0]).tolist():
                raise ParallelError(
                    f"at step {step} rank {others[0]} has other parameters than rank 0, where all should have the same "
                    f"bits: a machine computes or transfers wrongly, or a layer moves them by itself; no checkpoint of "
                    f"this step is written"
                )


def pool_statistics(buffers: list[Buffer], communicator: Communicator) -> None:
    """What is queued for the running statistics becomes, on all ranks, the statistics of the ranks' pieces together.

        mean = sum of n_r mean_r / n       var = sum of n_r (var_r + (mean_r - mean)^2) / n       n = sum of n_r

    buffers: running means, in whose queues BatchNorm puts its `Update`s, as many on every rank. n_r: values of a
    channel. The statistics of single samples (InstanceNorm) are averaged: the spread of the means is no part of them.
    """
    queued: list[tuple[Buffer, Any]] = [(buffer, update) for buffer in buffers for update in buffer.drain()]
    updates: list[Update] = [update for _, update in queued]
    own = [samples_of(update) * update.rows for update in updates]
    counts = [json.loads(text) for text in communicator.gather_texts(json.dumps(own))]
    totals = [sum(of_ranks) for of_ranks in zip(*counts, strict=True)]
    if not totals:
        return
    shares = [n / total for n, total in zip(own, totals, strict=True)]
    means = summed([w * of_channels(u.mean) for w, u in zip(shares, updates, strict=True)], communicator)
    spreads = [0 if u.mean.ndim == 2 else (u.mean - mean) ** 2 for u, mean in zip(updates, means, strict=True)]
    parts = [w * (of_channels(u.var) + spread) for w, u, spread in zip(shares, updates, spreads, strict=True)]
    for (buffer, u), mean, var, total in zip(queued, means, summed(parts, communicator), totals, strict=True):
        pooled = {"mean": mean, "var": var, "rows": total}
        if u.mean.ndim == 2:
            pooled = {"mean": mean[None], "var": var[None], "rows": u.rows}
        buffer.queue(u._replace(**pooled))


def samples_of(update: Update) -> int:
    return len(update.mean) if update.mean.ndim == 2 else 1


def of_channels(statistic: Array) -> Array:
    """(C,): the mean over the samples, where there is one for each."""
    return statistic.mean(axis=0) if statistic.ndim == 2 else statistic


def summed(arrays: list[Array], communicator: Communicator) -> list[Array]:
    """Each array summed over all ranks, in one call."""
    xp = array_module(*arrays)
    flat = xp.concatenate(arrays)
    communicator.all_reduce(flat)
    ends = np.cumsum([array.size for array in arrays]).tolist()
    return [flat[end - array.size : end] for array, end in zip(arrays, ends, strict=True)]
