"""`Threads`: a step's batch in pieces side by side, each on a replica of the model and one BLAS thread.

    with Threads(model, 2) as threads:
        train_step(model, optimizer, parts, seed, k, threads=threads)

Every part is cut into as many pieces as there are threads. The calling thread takes the first on the model itself, the
others take theirs on replicas, and the gradients are added in the order of the pieces. Those of large tables
(`Embedding`, a tied head) are worked out only then, by all threads together: for each thread to have its own would take
as much memory as the table. So the numbers do not depend on who is ready first. They are those of `--accumulate` with
as many parts on one thread: bit for bit, but for large tables, whose products are made by stretches of rows, and for
what a pass uses twice, as a tied table: here a piece's own sum comes first.

A thread that runs NumPy holds Python's lock between its calls, not in them, so the threads are in each other's way only
where the calls are short. BLAS's own threads share out the products alone, meet at the end of each, and spin while they
wait. `threads_for` says which of the two a run takes.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from itertools import pairwise
from threading import Barrier
from typing import Any, Self, TypeVar, cast

import numpy as np
from threadpoolctl import ThreadpoolController

from gpulayers.backend import device_of
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.layer import Layer
from gpulayers.ops.matmul import Product
from gpulayers.ops.op import row_blocks
from gpulayers.parameter import Parameter, pack
from gpulayers.replica import SharedFlat, replica
from gpulayers.share_out import share_out
from gpulayers.training.tasks.task import Part

T = TypeVar("T")
PIECE = 1 << 18  # elements of the gradient that one thread adds in one go: three such pieces fit the caches
# A table of one piece would be one thread's work, while the others wait: each thread makes its own in its pass.


class Threads:
    """`count` threads for passes of `model`, the calling one among them.

    in_turn: run the pieces one after the other on the calling thread; the same bits, for those who listen to it alone.

    Raises ValueError for a model that is not in host memory: kernels have threads enough.
    """

    def __init__(self, model: Layer, count: int) -> None:
        if count < 1:
            raise ValueError(f"Threads: count must be at least 1, got {count}")
        flat = pack(model)
        if device_of(flat.data) != "numpy":
            raise ValueError(f"Threads: the model must be in host memory, not on {device_of(flat.data)}")
        self.in_turn = False
        self._models = [model, *(replica(model) for _ in range(count - 1))]
        self._flats = [pack(one) for one in self._models]
        self._replicas = [cast(SharedFlat, one) for one in self._flats[1:]]
        self._buffers = [list(one.buffers()) for one in self._models]
        self._blas = ThreadpoolController().select(user_api="blas")
        self._pool = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="replica")
        self._touch_blas_buffers(count)

    def map(self, work: Callable[[Any, Part], T], parts: Iterable[Part]) -> list[T]:
        """work(model or replica, piece) for every piece of all parts; what it returns, in order.

        Afterwards the model has the gradients, and the queues of its buffers, of all pieces. An exception of `work` is
        raised once the pieces that had begun are through, that of the first piece if there are several; nothing is
        left of the step then. What `work` gives to the backward pass of a table, and what its forward pass saved, is
        looked at until all pieces of a part are through, and must not be written before.
        """
        self._follow()
        found: list[T] = []
        most = 1
        try:
            with self._blas.limit(limits=1), self._deferring():
                for part in parts:
                    pieces = cut(part, len(self._models))
                    found += self._side_by_side(work, pieces)
                    most = max(most, len(pieces))
                    self._add_to_tables()
                self._add_gradients(most)
        except BaseException:
            for flat in self._flats:
                flat.zero_grad()
            raise
        return found

    @contextmanager
    def _deferring(self) -> Iterator[None]:
        """Inside, what `contribute_deferred` is given waits for `_add_to_tables`."""
        try:
            for flat in self._flats:
                for segment in flat.segments:
                    if segment.parameter.data.size > PIECE:
                        segment.parameter.deferred = []
            yield
        finally:
            for flat in self._flats:
                for segment in flat.segments:
                    segment.parameter.deferred = None

    def _side_by_side(self, work: Callable[[Any, Part], T], pieces: list[Part]) -> list[T]:
        pairs = list(zip(self._models, pieces, strict=False))
        if self.in_turn:
            found = [work(model, piece) for model, piece in pairs]
        else:
            # in a copy of the context each: NumPy keeps there how it answers an overflow
            others = [self._pool.submit(copy_context().run, work, model, piece) for model, piece in pairs[1:]]
            try:
                first = work(*pairs[0])
            finally:
                wait(others)
            found = [first, *(other.result() for other in others)]
        for own, *its in zip(*self._buffers, strict=True):
            for buffer in its:
                own.take(buffer)
        return found

    def _add_to_tables(self) -> None:
        """The contributions that have waited, into the model's gradient: products first, by stretches of rows, then the
        rest; those of the first piece first."""
        for same in zip(*(flat.segments for flat in self._flats), strict=True):
            own, found = same[0].parameter, []
            for segment in same:
                waiting = segment.parameter.deferred or []
                found += waiting
                waiting.clear()
            products = [one for one in found if isinstance(one, Product)]
            if products:
                self._add_products(own, products)
            for one in found:
                if not isinstance(one, Product):
                    own.contribute(one)

    def _add_products(self, own: Parameter, products: list[Product]) -> None:
        grad, is_zero = own.grad_to_update()

        def add(rows: slice) -> None:
            for i, one in enumerate(products):
                one.rows(rows).add(grad[rows], is_zero and i == 0)

        self._on_all_threads(add, list(row_blocks(len(grad), grad.shape[1], PIECE)))

    def _add_gradients(self, count: int) -> None:
        """Those of the first `count` models into the model's, one model after the other."""

        def add(sums: tuple[np.ndarray, np.ndarray]) -> None:
            np.add(*sums, out=sums[0])

        for flat in self._replicas[: count - 1]:
            todo = list(flat.sums(PIECE))
            self._on_all_threads(add, todo, alone=sum(len(total) for total, _ in todo) <= PIECE)
            flat.zero_grad()

    def _on_all_threads(self, work: Callable[[Any], None], todo: list[Any], alone: bool = False) -> None:
        """work(x) for each x of `todo`, in any order: whoever is ready takes the next, or the calling thread all."""
        helpers = 0 if alone or self.in_turn else min(len(self._models), len(todo)) - 1
        share_out(work, todo, self._pool, helpers)

    def _follow(self) -> None:
        """What has been frozen or thawed in the model is in the replicas too. Raises RuntimeError if it was moved."""
        if any(flat.data is not self._flats[0].data for flat in self._flats):
            raise RuntimeError("Threads: the model was moved; make the threads after model.to(...)")
        for flat in self._flats[1:]:
            for its, own in zip(flat.segments, self._flats[0].segments, strict=True):
                its.parameter.trainable = own.parameter.trainable

    def _touch_blas_buffers(self, count: int) -> None:
        """Every thread that multiplies at the same time has a buffer of its own in OpenBLAS: see ops/matmul.py."""
        barrier = Barrier(count)

        def touch(_: int) -> None:
            barrier.wait()  # all at the same time, or one buffer would serve them one after the other
            for _ in range(4):
                np.matmul(np.ones((64, 384), np.float32), np.ones((384, 512), np.float32))

        with self._blas.limit(limits=1):
            others = [self._pool.submit(touch, i) for i in range(count - 1)]
            touch(0)
            wait(others)

    def close(self) -> None:
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cut(part: Part, count: int) -> list[Part]:
    """`part` in `count` pieces of nearly equal size, in fewer where it has fewer samples; of one sample at least."""
    size = len(part.targets)
    count = max(1, min(count, size))
    return [
        Part(part.first_sample + start, tuple(x[start:stop] for x in part.inputs), part.targets[start:stop])
        for start, stop in pairwise(size * i // count for i in range(count + 1))
    ]


# ------------------------------------------------------------------------------------------------ when it gains


GRAIN = 40_000  # numbers that an op of a piece works on, at least: some 40 us, beside which Python's lock is little


def threads_for(model: Layer, training: Any, grain: int) -> int:
    """How many threads a step runs its pieces on; 1: each part is one piece, and BLAS has the threads.

    grain: numbers that an op works on for one sample, 0 for a model of short calls (`Task.grain`).

    All of them where the ops of a piece have `GRAIN` numbers or more. Measured on two cores, samples a second over
    those with BLAS's threads: the default GPT (49,000 numbers) 1.2, the Transformer on dates (20,000) 0.88, the ViT on
    digits (13,000) 0.66, the recurrent net (1,500) 0.58. Not on a GPU; not with BatchNorm, whose statistics would be
    those of a piece. Settings and model decide, never the clock, so that a resumed run computes what it would have
    computed.
    """
    layers = (layer for _, layer in (("", model), *model.named_layers()))
    if training.backend != "numpy" or any(isinstance(layer, BatchNorm) for layer in layers):
        return 1
    samples = training.batch // training.accumulate // training.threads
    return training.threads if long_enough(samples, grain) else 1


def long_enough(samples: int, grain: int) -> bool:
    """Whether the ops of a piece of so many samples are long enough for threads of their own."""
    return samples * grain >= GRAIN


@contextmanager
def threads_of(model: Layer, training: Any, grain: int) -> Iterator[Threads | None]:
    """The threads of a run, None where BLAS has them."""
    count = threads_for(model, training, grain)
    if count == 1:
        yield None
        return
    with Threads(model, count) as threads:
        yield threads
