"""The training loop. `train_step` is the way of one array through one step; `Trainer` is everything around it.

Steps count batches: batch k makes step k + 1 of "k + 1 done". Whatever happens in a step depends on the parameters,
the optimizer's state, the seed and k alone, so a run that is stopped and resumed gives the same bits.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from gpulayers.backend import Array
from gpulayers.ops.cross_entropy import count_targets, cross_entropy_inplace
from gpulayers.ops.update_control import Outcome
from gpulayers.optim import LossScaleError, Optimizer, Plateau
from gpulayers.parallel import ALONE, Communicator, end_together
from gpulayers.profiling.ranges import recording as listening
from gpulayers.step import Train
from gpulayers.storage import only_writer
from gpulayers.training.checkpoint import save_best, save_checkpoint
from gpulayers.training.config import Config
from gpulayers.training.health_log import HealthLog, diagnose
from gpulayers.training.metrics import MetricsFile
from gpulayers.training.plot import plot_loss
from gpulayers.training.progress import Progress, printable
from gpulayers.training.ranks import Ranks
from gpulayers.training.reading import Reading
from gpulayers.training.stop import StopSignal
from gpulayers.training.tasks.task import Figures, Part, Task, shown
from gpulayers.training.threads import Threads, threads_of

METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
MOST_SKIPPED = 3  # steps in a row
NOBODY_READS = 1  # in place of a signal's number: a reason to stop, too


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one sentence that says why and what is left."""


def train_step(
    model: Any,
    optimizer: Optimizer,
    parts: Iterable[Part],
    seed: int,
    k: int,
    loss_options: Mapping[str, Any] = MappingProxyType({}),
    threads: Threads | None = None,
    ranks: Ranks | None = None,
    before_update: Callable[[], Iterable[Part] | None] | None = None,
) -> Array:
    """One step on batch k: forward, loss, backward for each of its parts, then one update.

    loss_options: keywords for `cross_entropy` beside reduction= and scale=, such as label_smoothing.
    threads: of `model`, to run the parts on in pieces; without them each part is one piece.
    ranks: other processes with their own parts of the same batch, `ranks.share(...)` of it; all take the same step.
    before_update: called when all passes are queued and nothing has been updated yet. If it has used up the gradients,
        it returns the parts once more, for new passes.

    Losses and gradients are summed over all parts and divided by the number of all targets once, so the split changes
    nothing but rounding. A loss or gradient that is not finite changes nothing but the loss scale: parameters, moments
    and counters stay as they are. On a GPU nothing in here waits for the device.

    Returns what came of it, on the device: `optimizer.read` makes numbers of it.
    """

    def forward_backward(model: Any, part: Part) -> tuple[Any, Any]:
        first_sample, inputs, targets = part
        logits, saved = model.forward(*inputs, train=Train(seed, k, first_sample))  # (..., V)
        loss, dlogits = cross_entropy_inplace(logits, targets, reduction="sum", scale=optimizer.scale, **loss_options)
        model.backward(dlogits, saved)  # adds to every gradient
        return loss, count_targets(targets, weight=loss_options.get("weight"))

    def total(parts: Iterable[Part]) -> tuple[Any, Any]:
        one_by_one = (forward_backward(model, part) for part in parts)
        loss, count = 0.0, 0.0
        for part_loss, part_count in one_by_one if threads is None else threads.map(forward_backward, parts):
            loss, count = loss + part_loss, count + part_count
        return loss, count

    loss, count = total(parts)
    if before_update is not None and (again := before_update()) is not None:
        loss, count = total(again)
    if ranks is not None:
        loss, count = ranks.all_reduce(optimizer.flat, loss, count)  # gradients too
    optimizer.step(count, loss)  # divides by count, clips, updates, clears the gradients
    return optimizer.outcome()


class Pending(NamedTuple):
    """A step whose figures have not been read. size: how many units it has seen."""

    step: int
    size: int
    started: float
    outcome: Reading


class Trainer:
    """A run that stands at `step`, and goes on to the last by `run()`.

    task: data and model, see `tasks/`. best: lowest validation loss so far.
    skipped: steps in a row, up to here, whose loss or gradient was not finite. communicator: of all ranks of the run;
    this one is the first, which alone writes and speaks, the others are a `Follower` each.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        task: Task,
        optimizer: Optimizer,
        step: int = 0,
        best: float = math.inf,
        skipped: int = 0,
        communicator: Communicator = ALONE,
    ) -> None:
        self.folder, self.config, self.task, self.optimizer = folder, config, task, optimizer
        self.ranks = Ranks(task.model, communicator)
        self.step, self.best, self.skipped = step, best, skipped
        self.saved_at: int | None = None
        self.pending: Pending | None = None
        self.looked_again = False  # whether the pass of a skipped step was run again, see `_catch_up`
        self.read_at = 0.0  # when figures were read last

    def run(self, begun: Callable[[], object] = lambda: None) -> Signals | None:
        """Train to the last step. Returns the signal that stopped it early, if one did; all is saved either way.

        begun: called once nothing stands in the way any more, another process that writes to the folder say.

        Raises TrainingError after three skipped steps in a row, FileError if the disk is full; the last good checkpoint
        is then still there. Raises OSError where stdout or stderr cannot be written to any more; all is saved first.
        """
        options = self.config.training
        reason = 0
        with (
            self._outputs(),
            threadpool_limits(options.threads, "blas"),
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),  # looked for and reported, see train_step
            threads_of(self.task.model, options, self.task.grain // self.ranks.size) as self.threads,
            StopSignal(self.ranks.rank == 0) as stop,
            self._parting(),
        ):
            begun()
            while self.step < options.steps and not (reason := self._reason_to_stop(stop)):
                self._advance()
            self._catch_up()
            if self.saved_at != self.step:
                self._save()
            self._plot()
            if self.progress.failed is not None:
                raise self.progress.failed
        return Signals(reason) if self.step < options.steps else None

    @contextmanager
    def _outputs(self) -> Iterator[None]:
        """The files that a run writes to as it goes, and its progress bar."""
        options = self.config.training
        health_every = options.health_every * options.health
        with (
            only_writer(self.folder),
            MetricsFile(self.folder / METRICS, resume_at=self.step) as self.metrics,
            MetricsFile(self.folder / SAMPLES, resume_at=self.step) as self.samples,
            HealthLog(self.folder, self.task.model, self.optimizer, health_every, self.step) as self.health,
            Progress(options.steps, self.step, units=self.task.units) as self.progress,
        ):
            yield

    @contextmanager
    def _parting(self) -> Iterator[None]:
        """All ranks get to the end together, also where training cannot go on: they have seen the same figures."""
        try:
            yield
        except TrainingError:
            end_together(self.ranks.communicator)
            raise
        end_together(self.ranks.communicator)

    def _reason_to_stop(self, stop: StopSignal) -> int:
        """A signal's number, NOBODY_READS or 0. What one rank has, all have, for they must stop after the same step."""
        return self.ranks.largest(stop.received or (0 if self.progress.failed is None else NOBODY_READS))

    def _advance(self) -> None:
        """One step, and what is due after it.

        On a GPU its figures are read when the passes of the next step are queued, so that the device never waits for
        work; unless something is due that needs them. The update of the next step is queued after that: so a step that
        was skipped can still be looked at with the parameters that it had.
        """
        started, sizes, options = time.perf_counter(), [], self.config.training
        late = options.backend != "numpy"
        if self.health.watches(self.step):
            self._catch_up()  # nobody can look at a skipped step while this one is watched
        if self.threads is not None:
            self.threads.in_turn = self.health.watches(self.step)  # it listens to one thread
        with self.health.watch(self.step):
            outcome = train_step(
                self.task.model,
                self.optimizer,
                self._parts(sizes),
                options.seed,
                self.step,
                self.task.loss_options,
                self.threads,
                self.ranks,
                (lambda: self._parts(sizes) if self._catch_up() else None) if late else None,
            )
        self.step += 1
        self.pending = Pending(self.step, sum(sizes), started, Reading(outcome))
        if sick := self.health.note(self.step - 1):
            self.progress.say(sick)
        if options.backend == "numpy" or self._anything_due():
            self._round_off()

    def _catch_up(self) -> bool:
        """Read and write down the figures of the step that is pending, if one is. Returns whether its pass was run
        again: gradients that were there are gone then."""
        self.looked_again = False
        if self.pending is not None:
            self.metrics.write(self._figures(self.pending))
        return self.looked_again

    def _round_off(self) -> None:
        """The figures of the last step, and what is due after it."""
        options = self.config.training
        if self.pending is None:
            return
        record = self._figures(self.pending)
        if self._due(options.eval_every) or self.step == options.steps:
            record |= self._measure()
        if self._due(options.eval_every):  # a run that ends in between and goes on later is to be as one that did not
            self._tell_schedule(record.get("val_loss", math.nan))
        self.metrics.write(record)  # before any checkpoint of this step: none is without its line
        if "val_loss" in record:
            self._keep_best(record["val_loss"])
            self.task.pictures(self.folder, self.step)
            self._plot()
        if self._due(options.sample_every) or (options.sample_every and self.step == options.steps):
            self._sample()
        if self._due(options.save_every):
            self._save()

    def _figures(self, pending: Pending) -> dict[str, Any]:
        """The record of a step. Raises TrainingError where training cannot go on."""
        self.pending = None
        try:
            found = self.optimizer.read(pending.outcome.wait())
        except LossScaleError as error:
            raise TrainingError(
                f"step {pending.step}: {error}; the last good checkpoint in {self.folder} is kept"
            ) from error
        now = time.perf_counter()
        speed = pending.size / (now - max(pending.started, self.read_at))
        self.read_at = now
        record = {
            "step": pending.step,
            "loss": found.loss,
            "lr": self.optimizer.rate(int(found.applied - found.apply)),
            "grad_norm": found.norm if math.isfinite(found.loss) else math.nan,
            f"{self.task.units}_per_second": speed,
        }
        self.progress.step(found.loss, speed)
        self._count_skipped(record, found)
        return record

    def _parts(self, sizes: list[int]) -> Iterator[Part]:
        """The parts of the next batch, this rank's piece of them. sizes: how many units each has, on all ranks."""
        sizes.clear()
        return self.ranks.share(self._counted(sizes))

    def _counted(self, sizes: list[int]) -> Iterator[Part]:
        for part in self.task.parts(self.step):
            sizes.append(self.task.size(part))
            yield part

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _anything_due(self) -> bool:
        options = self.config.training
        every = (options.eval_every, options.sample_every, options.save_every)
        return self.step == options.steps or any(map(self._due, every))

    def _count_skipped(self, record: dict[str, Any], found: Outcome) -> None:
        scaled = self.optimizer.scale is not None and math.isfinite(found.loss)  # skipping is part of float16 training
        self.skipped = 0 if found.apply or scaled else self.skipped + 1
        if found.apply:
            return
        record["skipped"], step = True, record["step"]
        if scaled:
            now = f"the loss scale is {found.loss_scale:g} now"
            self.progress.say(f"step {step}: the gradient overflowed; the step is skipped, {now}")
            return
        what, where = "gradient" if math.isfinite(found.loss) else "loss", self._where(step)
        if self.skipped < MOST_SKIPPED:
            self.progress.say(f"step {step}: the {what} is not finite{where}; the step is skipped")
            return
        self.metrics.write(record)
        raise TrainingError(
            f"the {what} was not finite in {self.skipped} steps in a row, up to step {step}{where}; the last good "
            f"checkpoint in {self.folder} is kept; a lower --lr, a lower --clip or a longer --warmup may help"
        )

    def _where(self, step: int) -> str:
        """' (exploding from ...)': the layer in which this step, which was skipped, went wrong, if it can be told."""
        if listening():  # to a trace, which would show the pass twice
            return ""
        self.looked_again = True
        sick = diagnose(self.task, self.optimizer, self.config.training.seed, step - 1)
        return "" if sick is None else f" ({sick})"

    def _measure(self) -> Figures:
        """What the task measures."""
        figures = self.task.measure()
        self.progress.measured(shown(figures, self.task.units))
        return figures

    def _tell_schedule(self, loss: float) -> None:
        """A plateau lowers the rate where the validation loss no longer falls; all ranks hear it of the first."""
        if isinstance(plateau := self.optimizer.schedule, Plateau):
            heard = np.array([loss])
            if self.ranks.size > 1:
                self.ranks.communicator.broadcast(heard)
            plateau.update(heard[0])

    def _keep_best(self, loss: float) -> None:
        """The checkpoint is kept as the best one if its validation loss is lower than ever."""
        if loss < self.best:
            self.best = loss
            save_best(self.folder, self.step, self.tensors(), self._metadata(loss))

    def _sample(self) -> None:
        try:
            text = self.task.sample(self.step)
        except FloatingPointError as error:
            self.progress.say(f"step {self.step}: no sample: {error}")
            return
        if not text:
            return
        self.samples.write({"step": self.step, "text": text})
        self.progress.say(f"--- a sample at step {self.step} ---\n{printable(text)}\n---", file=sys.stdout)

    def _save(self) -> None:
        self.ranks.check_same(self.optimizer.flat.data, self.step)
        self.metrics.sync()
        self.samples.sync()
        self.health.sync()
        self.save()

    def save(self) -> None:
        """A checkpoint of this step. Raises ValueError, and writes nothing, if a GPU has met a bad target or id."""
        self.optimizer.check()
        save_checkpoint(self.folder, self.step, self.tensors(), self._metadata())
        self.saved_at = self.step

    def tensors(self) -> dict[str, Array]:
        """Everything that a step changes, by its name in the checkpoint."""
        model = {f"model.{name}": array for name, array in self.task.model.state_dict().items()}
        return model | self.optimizer.state_dict()

    def _metadata(self, val_loss: float | None = None) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            **self.task.metadata(),
            "data_digest": self.task.digest,
            "best_val_loss": self.best,
            "skipped_in_a_row": self.skipped,
            "ranks": self.ranks.size,
            **({} if val_loss is None else {"val_loss": val_loss}),
        }

    def _plot(self) -> None:
        plot_loss(self.folder / METRICS, self.folder / "loss.png", title=self.folder.name)
        self.health.plot()
