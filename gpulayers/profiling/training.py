"""The steps of `gpulayers train` that are profiled: some to warm up, then some to look at, and nothing else.

No evaluation, samples or checkpoints, and no run folder. The range `profile` is around the steps to look at, and only
they have ranges at all; so nsys captures `profile`, ncu includes `step`, and neither sees the warm-up.
"""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from gpulayers.backend import array_module, use
from gpulayers.profiling.ranges import Range, Ranges, Recorder, named
from gpulayers.training import loop
from gpulayers.training.config import Config
from gpulayers.training.ranks import Ranks as TrainingRanks
from gpulayers.training.run import optimizer_for
from gpulayers.training.tasks import TASKS
from gpulayers.training.threads import Threads, threads_of


def calls() -> list[tuple[Any, str, Range]]:
    """What a run does beside layers, ops and optimizer, for `Ranges`."""
    own = [("_measure", "evaluation"), ("_sample", "sample"), ("_save", "save"), ("_plot", "plot")]
    between = (TrainingRanks, "_all_reduce", named("all_reduce"))
    return [
        (loop, "train_step", named("step")),
        between,
        *((loop.Trainer, function, named(kind)) for function, kind in own),
    ]


class Steps:
    """The run that `config` says, made up to its first step.

    Raises ConfigError, DataError or GPUUnavailable.
    """

    def __init__(self, config: Config) -> None:
        self.config = config.complete()
        use(self.config.training.backend)
        self.task = TASKS[self.config.task](self.config)
        self.optimizer = optimizer_for(self.task)

    @property
    def like(self) -> Any:
        """An array on the device."""
        return self.optimizer.flat.data

    def run(self, recorder: Recorder, warm_up: int, steps: int) -> None:
        """Steps 0 to warm_up - 1 alone, then `steps` steps with their ranges."""
        with (
            threadpool_limits(self.config.training.threads, "blas"),
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
            threads_of(self.task.model, self.config.training, self.task.grain) as threads,
        ):
            for k in range(warm_up):
                self._step(k, threads)
            self._wait()
            with Ranges(recorder, self.task.model, self.optimizer, calls()) as ranges, ranges.range("profile"):
                for k in range(warm_up, warm_up + steps):
                    self._step(k, threads)
                self._wait()

    def _step(self, k: int, threads: Threads | None) -> None:
        task, seed = self.task, self.config.training.seed
        loop.train_step(task.model, self.optimizer, task.parts(k), seed, k, task.loss_options, threads)

    def _wait(self) -> None:
        xp = array_module(self.like)
        if xp is not np:
            xp.cuda.Device().synchronize()
