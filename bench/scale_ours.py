"""On every rank of `bench.scale`: the training step of `gpulayers train --data-parallel`."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import gpt_case, machine
from bench.gpt_case import Steps
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import AdamW
from gpulayers.parallel import connect
from gpulayers.training.loop import train_step
from gpulayers.training.ranks import Ranks
from gpulayers.training.tasks.task import Part


class RankSteps(Steps):
    """between: the calls in which a rank waits for the others and sums with them."""

    between: "Stopwatch"


def make(sizes: list[int], threads: int, warm_up: int = gpt_case.WARM_UP) -> RankSteps:
    """sizes: of `gpt_case.Sizes`; the batch is that of all ranks together."""
    case = gpt_case.Sizes(*sizes)
    model = GPT(GPTConfig(case.vocab, case.length, case.layers, case.heads, case.dim))
    model.load_state_dict(gpt_case.parameters(case))
    optimizer = AdamW(model, lr=gpt_case.LR, betas=gpt_case.BETAS, weight_decay=gpt_case.DECAY, threads=threads)
    ranks, position = Ranks(model, connect()), 0
    between = Stopwatch(ranks._all_reduce)
    vars(ranks)["_all_reduce"] = between  # for this object alone

    def step(ids: np.ndarray, targets: np.ndarray) -> float:
        nonlocal position
        outcome = train_step(model, optimizer, ranks.share([Part(0, (ids,), targets)]), 0, position, ranks=ranks)
        position += 1
        return optimizer.read(outcome).loss

    facts: dict[str, Any] = {**machine.describe(threads), "gradient_bytes": optimizer.flat.grad.nbytes}
    subject = RankSteps(step, gpt_case.batches(case), facts, warm_up)
    subject.between = between
    return subject


class Stopwatch:
    """A function, and the wall and processor seconds that its calls have taken."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.wall, self.processor = function, 0.0, 0.0

    def __call__(self, *args: Any) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        found = self.function(*args)
        self.wall += time.perf_counter() - wall
        self.processor += time.process_time() - processor
        return found


def all_reduce_seconds(nbytes: int, count: int = 20) -> float:
    """The median time of an all-reduce of a float32 array, all ranks beginning together."""
    ranks, array, times = connect(), np.zeros(nbytes // 4, np.float32), []
    for _ in range(count):
        ranks.barrier()
        start = time.perf_counter()
        ranks.all_reduce(array)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
