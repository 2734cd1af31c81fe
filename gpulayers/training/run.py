"""Run folders: starting a run, going on with one, and opening what it has saved."""

import datetime
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpulayers.backend import to_numpy, use
from gpulayers.data import DataError
from gpulayers.models.huggingface import is_folder
from gpulayers.optim import LossScale, Optimizer, Plateau, make_optimizer, make_schedule
from gpulayers.parallel import ALONE, Communicator, together
from gpulayers.parameter import NoRoom, room_for
from gpulayers.storage import FileError, StrPath, filled_folder, only_writer
from gpulayers.training.agree import agree, own_device, settings, threads_of_rank
from gpulayers.training.checkpoint import BEST, latest_checkpoint, load_checkpoint, none_whole, whole_checkpoints
from gpulayers.training.config import LOW_PRECISION, Config
from gpulayers.training.follower import Follower
from gpulayers.training.loop import Trainer
from gpulayers.training.options import ConfigError
from gpulayers.training.tasks import DEFAULTS, TASKS, Saved, Task
from gpulayers.training.tasks.gpt import GPTTask

CONFIG = "config.toml"


def start(config: Config, folder: StrPath | None = None, communicator: Communicator = ALONE) -> Trainer:
    """A new run in `folder` (by default runs/<task>-<time>), whose step 0 is saved.

    communicator: of the ranks that train it together, each of which calls this; the first has the folder.

    Raises ConfigError, DataError or GPUUnavailable before anything is written; FileError where the folder cannot be.
    ParallelError where the ranks do not have the same versions, settings and data.
    """
    config = with_threads(config, communicator)
    own_device(config.training.backend, communicator)
    first = communicator.rank == 0
    with together(communicator):
        config = config.complete()
        if first and folder is not None and os.path.lexists(folder):
            raise ConfigError(already_there(folder))
        task = TASKS[config.task](config)
        trainer = trainer_for(communicator)(Path(), config, task, optimizer_for(task), communicator=communicator)
        trainer.ranks.check_parts(config.training)
    agree(communicator, **settings(config), data=task.digest)
    same_state(trainer)

    def fill(unfinished: Path) -> None:
        trainer.folder = unfinished
        config.write(unfinished / CONFIG)
        trainer.save()

    with together(communicator, first_alone=True):
        if first:
            trainer.folder = new_folder(config.task, folder, fill)
    trainer.folder = Path(communicator.broadcast_text(str(trainer.folder)))
    return trainer


def trainer_for(communicator: Communicator) -> type[Trainer]:
    """The first rank writes and speaks, the others follow."""
    return Trainer if communicator.rank == 0 else Follower


def with_threads(config: Config, communicator: Communicator) -> Config:
    """With the rank's share of the cores, where nothing is said."""
    if communicator.size == 1 or config.training.threads is not None:
        return config
    return config.with_training(threads=threads_of_rank(communicator))


def same_state(trainer: Trainer) -> None:
    """The first rank's parameters, moments and counters go to all others, so that all begin with the same bits."""
    if trainer.ranks.size == 1:
        return
    tensors = {name: np.array(to_numpy(array), order="C") for name, array in trainer.tensors().items()}
    for array in tensors.values():
        trainer.ranks.communicator.broadcast(array)
    restore(trainer.folder, tensors, trainer.task.model, trainer.optimizer)


def resume(
    folder: StrPath,
    steps: int | None = None,
    backend: str | None = None,
    threads: int | None = None,
    warn: Callable[[str], Any] = print,
    communicator: Communicator = ALONE,
) -> Trainer:
    """The run in `folder` at its last whole checkpoint, to go on as if it had never stopped.

    communicator: of the ranks that go on with it, in any number; the first alone reads the folder.

    Raises FileError without a checkpoint, ConfigError for a run that is finished, DataError if the data has changed.
    """
    changes = {"steps": steps, "backend": backend, "threads": threads}
    changes = {name: value for name, value in changes.items() if value is not None}
    agree(communicator, **{name: value for name, value in changes.items() if name != "threads"})
    cores, trainer = threads_of_rank(communicator), None
    with together(communicator, first_alone=True):
        if communicator.rank == 0:
            trainer = _resume(Path(folder), changes, cores, warn, communicator)
    return _followed(trainer, communicator)


def _followed(trainer: Trainer | None, communicator: Communicator) -> Trainer:
    """The first rank's trainer, given; on the others one that follows it."""
    about = ""
    if trainer is not None:
        stands = {"step": trainer.step, "best": trainer.best, "skipped": trainer.skipped}
        about = json.dumps([str(trainer.folder), trainer.config.to_dict(), stands, trainer.task.metadata()])
    folder, values, stands, metadata = json.loads(communicator.broadcast_text(about))
    config = DEFAULTS[values["task"]].updated(values, folder)
    own_device(config.training.backend, communicator)
    with together(communicator):
        if trainer is None:
            task = TASKS[config.task].resumed(config, metadata)
            trainer = Follower(Path(folder), config, task, optimizer_for(task), communicator=communicator, **stands)
            trainer.saved_at = trainer.step
        trainer.ranks.check_parts(config.training)
    agree(communicator, data=trainer.task.digest)
    same_state(trainer)
    return trainer


def _resume(
    folder: Path, changes: dict[str, Any], cores: int, warn: Callable[[str], Any], communicator: Communicator
) -> Trainer:
    """On the first rank. cores: threads for a run that had another number of ranks, whose share was another."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a run folder" if folder.exists() else f"{folder} does not exist")
    last: FileError | None = None
    for path, tensors, metadata in whole_checkpoints(folder, warn):
        try:
            trainer, recorded = _trainer_at(folder, path, tensors, metadata, changes, cores, communicator)
            break
        except FileError as error:  # of another model, say: an older one may do
            if last is not None:
                warn(f"{last}; passed over")
            last = error
    else:
        raise last or none_whole(folder)
    if last is not None:
        warn(f"{last}; passed over")
    if trainer.config != recorded:  # so that the next resume knows it too, whenever this one stops
        with only_writer(folder):
            trainer.config.write(folder / CONFIG)
            trainer.save()
    return trainer


def _trainer_at(
    folder: Path,
    path: Path,
    tensors: dict[str, Any],
    metadata: dict[str, Any],
    changes: dict[str, Any],
    cores: int,
    communicator: Communicator,
) -> tuple[Trainer, Config]:
    """The run in `folder` at the checkpoint `path`, and the settings that it has recorded. Raises as `resume`."""
    check_metadata(path, metadata)
    recorded = config_of(path, metadata)
    if metadata.get("ranks", 1) != communicator.size:
        changes = {"threads": cores, **changes}
    config = recorded.with_training(**changes)
    config.training.complete()  # refuses what does not fit
    if metadata["step"] >= config.training.steps:
        raise ConfigError(f"{folder} is finished: it has done {metadata['step']} steps; give a larger --steps to go on")
    use(config.training.backend)
    try:
        with room_for(parameters(tensors).values()):
            task = TASKS[config.task].resumed(config, metadata)
    except NoRoom as error:
        raise FileError(f"{path} is a checkpoint of another model: {error}") from error
    if task.digest != metadata["data_digest"]:
        raise DataError(f"the data is not what {folder} was started with: its digest differs")
    optimizer = optimizer_for(task)
    restore(path, tensors, task.model, optimizer)
    trainer = Trainer(
        folder,
        config,
        task,
        optimizer,
        step=metadata["step"],
        best=metadata["best_val_loss"],
        skipped=metadata["skipped_in_a_row"],
        communicator=communicator,
    )
    trainer.saved_at = trainer.step
    return trainer, recorded


def optimizer_for(task: Task) -> Optimizer:
    """The update rule of the task's model, with its schedule."""
    config, model = task.config, task.model
    o = config.optimizer
    falls_to, adam = {"final": o.lr_final}, {"betas": (o.beta1, o.beta2), "eps": o.eps}
    of_schedule: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("linear", "cosine", "polynomial", "exponential", "cosine_restarts"), falls_to),
        "cyclic": {"base": o.lr_final},
        "step": {"step_size": o.lr_step_size, "gamma": o.lr_gamma},
        "multi_step": {"gamma": o.lr_gamma},
    }
    if o.schedule == "plateau":
        schedule = Plateau("min", o.lr_gamma, o.lr_patience, min_factor=o.lr_final, warmup=o.warmup or 0)
    else:
        schedule = make_schedule(o.schedule, o.schedule_steps or 1, o.warmup or 0, **of_schedule.get(o.schedule, {}))
    of_rule: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("adam", "adamw", "nadam", "radam"), adam),
        "sgd": {"momentum": o.momentum, "nesterov": o.nesterov},
        "rmsprop": {"alpha": o.alpha, "eps": o.eps},
        "lion": {"betas": (o.beta1, o.beta2)},
        "adagrad": {"eps": o.eps},
    }
    return make_optimizer(
        o.name,
        model,
        lr=o.lr,
        weight_decay=o.weight_decay,
        l1=o.l1,
        clip_norm=o.clip or None,
        clip_value=o.clip_value or None,
        schedule=schedule,
        threads=config.training.threads,
        loss_scale=loss_scale(task) if config.training.dtype == "float16" else None,
        **of_rule[o.name],
    )


def loss_scale(task: Task) -> LossScale:
    """The loop sums over the targets of a step."""
    return LossScale.for_sum(max(1, sum(part.targets.size for part in task.parts(0))))


def restore(path: Path, tensors: dict[str, Any], model: Any, optimizer: Any) -> None:
    """Copy the tensors of a checkpoint into model and optimizer.

    Raises FileError if it is of another model; neither of the two is changed then.
    """
    of_model, of_optimizer = parameters(tensors), {n: t for n, t in tensors.items() if not n.startswith("model.")}
    try:
        model.check_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        model.load_state_dict(of_model)
    except (ValueError, KeyError) as error:
        raise FileError(f"{path} is a checkpoint of another model: {error}") from error


def parameters(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}


def check_metadata(path: Path, metadata: dict[str, Any]) -> None:
    """Raises FileError where a value that `Trainer` writes is missing or something else."""
    for name, kind in (("data_digest", str), ("best_val_loss", float), ("skipped_in_a_row", int)):
        if type(metadata.get(name)) is not kind:
            raise FileError(f"{path} is not a checkpoint of a run: its {name} is {str(metadata.get(name))[:80]}")


def config_of(path: Path, metadata: dict[str, Any]) -> Config:
    """The settings that a checkpoint was made with. Raises FileError."""
    try:
        stored = metadata["config"]
        return DEFAULTS[stored["task"]].updated(stored, str(path))
    except (KeyError, TypeError, ConfigError) as error:
        raise FileError(f"{path} does not say how its model was made: {error}") from error


# ------------------------------------------------------------------------------------------------ saved models


def open_saved(
    run: StrPath, checkpoint: str | None = None, backend: str = "numpy", warn: Callable[[str], Any] = print
) -> Saved:
    """The model of a run folder, a checkpoint file, or a folder of a GPT-2 of transformers.

    checkpoint: of a folder, "best" (by validation loss, the default; the last where none was measured), "last", or a
    file in it or anywhere. warn: is told of broken checkpoints that are passed over.

    Raises FileError or ConfigError, one sentence; GPUUnavailable.
    """
    use(backend)
    if is_folder(run):
        if checkpoint is not None:
            raise ConfigError(f"{run} is a folder of transformers: it has no checkpoints to choose from")
        return GPTTask.pretrained(Path(run), backend)
    path = checkpoint_path(Path(run), checkpoint, warn)
    try:
        tensors, metadata = load_checkpoint(path, "model.")
    except FileError as error:
        if checkpoint is not None or not Path(run).is_dir():
            raise
        warn(f"{error}; passed over")  # the best one: any other was looked through when it was chosen
        path = latest_checkpoint(run, warn)
        tensors, metadata = load_checkpoint(path, "model.")
    check_metadata(path, metadata)
    config = config_of(path, metadata).with_training(backend=backend)
    if backend == "numpy" and config.training.dtype in LOW_PRECISION:  # the file holds float32
        config = config.with_training(dtype="float32")
    try:
        with room_for(tensors.values()):
            model = TASKS[config.task].rebuild(config, metadata)
        model.load_state_dict(parameters(tensors))
    except (KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"{path} does not hold a whole model: {error}") from error
    return Saved(path, metadata["step"], config, model, metadata)


def checkpoint_path(run: Path, checkpoint: str | None, warn: Callable[[str], Any]) -> Path:
    if run.is_file():
        if checkpoint is not None:
            raise ConfigError(f"{run} is a checkpoint already: --checkpoint is for run folders")
        return run
    if not run.is_dir():
        raise FileError(f"{run} does not exist; give a run folder or a checkpoint file")
    if checkpoint in (None, "best") and (run / BEST).is_file():
        return run / BEST
    if checkpoint in (None, "best", "last"):
        return latest_checkpoint(run, warn)
    return run / checkpoint if (run / checkpoint).is_file() else Path(checkpoint)


# ------------------------------------------------------------------------------------------------ folders


def already_there(folder: StrPath) -> str:
    return (
        f"{os.fspath(folder)} exists already: choose another --out, "
        f"or go on with that run by gpulayers train --resume {os.fspath(folder)}"
    )


def new_folder(kind: str, folder: StrPath | None, fill: Callable[[Path], object]) -> Path:
    """`folder`, or runs/<kind>-<date>-<time>, with a number behind it where two runs start in the same second.

    It is there once `fill` has written all that belongs into it, and not before: see `storage.filled_folder`. Raises
    ConfigError if it was there already, FileError if it cannot be made.
    """
    if folder is not None:
        paths, leftovers = iter([Path(folder)]), re.escape(Path(folder).name)
    else:
        paths, leftovers = _names(kind), rf"{kind}-[\d-]+"
    try:
        return filled_folder(paths, fill, leftovers)
    except FileExistsError as error:
        raise ConfigError(already_there(folder or "runs")) from error


def _names(kind: str) -> Iterator[Path]:
    name = f"{kind}-{datetime.datetime.now():%Y-%m-%d-%H%M%S}"
    yield Path("runs") / name
    yield from (Path("runs") / f"{name}-{number}" for number in range(2, 1000))
