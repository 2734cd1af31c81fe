"""The health of a run: `health.jsonl` and `health.png` in its folder, and one line when a layer falls sick.

A line of health.jsonl is what `health.as_record` makes, of the steps 1, 1 + every, 1 + 2 every, ...
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

from gpulayers.ops.cross_entropy import count_targets, cross_entropy_inplace
from gpulayers.optim import Optimizer
from gpulayers.step import Train
from gpulayers.training.health import Sick, as_record, first_sick
from gpulayers.training.health_plot import plot_health
from gpulayers.training.ledger import Ledger
from gpulayers.training.metrics import MetricsFile

HEALTH, PICTURE = "health.jsonl", "health.png"


class HealthLog:
    """Watches every `every`-th step of a run that stands at `step`; 0: none, and no file."""

    def __init__(self, folder: Path, model: Any, optimizer: Optimizer, every: int, step: int) -> None:
        self.folder, self.every = folder, every
        self.ledger = Ledger(model, optimizer)
        self.told = {"not finite"}  # kinds of sickness; the loop speaks of this one itself, in every step
        self._file = MetricsFile(folder / HEALTH, resume_at=step) if every else None

    def watch(self, k: int) -> AbstractContextManager[None]:
        """Around the step on batch k."""
        return self.ledger.watch() if self.watches(k) else nullcontext()

    def watches(self, k: int) -> bool:
        return self.every > 0 and k % self.every == 0

    def note(self, k: int) -> str:
        """Write down what was seen in the step on batch k. Returns a line to say when a kind of sickness comes for the
        first time, "" otherwise. Raises FileError."""
        if self._file is None or not self.watches(k):
            return ""
        sick = first_sick(self.ledger.rows)
        self._file.write(as_record(k + 1, self.ledger.rows))
        if sick is None or sick.kind in self.told:
            return ""
        self.told.add(sick.kind)
        return f"step {k + 1}: {sick}"

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def plot(self) -> None:
        if self._file is not None:
            plot_health(self.folder / HEALTH, self.folder / PICTURE, title=self.folder.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def diagnose(task: Any, optimizer: Optimizer, seed: int, k: int) -> Sick | None:
    """The first sick layer in the step on batch k, whose loss or gradient was not finite.

    Such a step has changed no parameter, so the pass can be run again, before the next update. All gradients are
    dropped after that, those of a step that has begun too.
    """
    ledger = Ledger(task.model)
    count, scale = 0.0, optimizer.scale
    with ledger.watch():
        for first_sample, inputs, targets in task.parts(k):
            logits, saved = task.model.forward(*inputs, train=Train(seed, k, first_sample))
            _, dlogits = cross_entropy_inplace(logits, targets, reduction="sum", scale=scale, **task.loss_options)
            task.model.backward(dlogits, saved)
            count += float(count_targets(targets, weight=task.loss_options.get("weight")))
        ledger.divisor = (count or 1.0) * (1.0 if scale is None else float(scale))
    task.model.zero_grad()
    return first_sick(ledger.rows)
