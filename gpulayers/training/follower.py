"""`Follower`: a rank beside the first. It takes the same steps, and writes and says nothing."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from signal import Signals
from typing import Any

from gpulayers.parallel import Elsewhere
from gpulayers.training.health_log import HealthLog
from gpulayers.training.loop import Trainer, TrainingError
from gpulayers.training.progress import Progress
from gpulayers.training.tasks.task import Figures


class NoFile:
    """Where the first rank has a `MetricsFile`."""

    def write(self, record: Mapping[str, Any]) -> None: ...

    def sync(self) -> None: ...


class Follower(Trainer):
    """As `Trainer`, whose decisions it makes too, from the same figures: what is due, and when training has to end.

    The first rank measures and samples alone, while the others wait for it in the next step.
    """

    def run(self, begun: Callable[[], object] = lambda: None) -> Signals | None:
        try:
            return super().run(begun)
        except TrainingError as error:
            raise Elsewhere(1) from error

    @contextmanager
    def _outputs(self) -> Iterator[None]:
        options = self.config.training
        self.metrics = self.samples = NoFile()
        self.health = HealthLog(self.folder, self.task.model, self.optimizer, 0, self.step)
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            self.progress = Progress(options.steps, self.step, nowhere)
            yield

    def save(self) -> None:
        self.optimizer.check()
        self.saved_at = self.step

    def _measure(self) -> Figures:
        return {}

    def _sample(self) -> None: ...

    def _plot(self) -> None: ...

    def _where(self, step: int) -> str:
        return ""
