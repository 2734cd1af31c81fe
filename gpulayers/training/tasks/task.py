"""`Task`: what a run trains. The loop, the run folder and the commands know no more of it than this file offers.

A task is one file beside this one and an entry in `TASKS`. It holds, from top to bottom:

    XOptions(Options), XData(Options)    the tables [model] and [data] of its settings: `option(...)` fields
    class XTask(Task)                    below; `default` is its Config, `about` what `train X --help` says

    task = XTask(config)                 reads the data, makes the model on its device; config is complete
    task.model.forward(*part.inputs, train=Train(...)) -> (logits (..., V), saved)       the loop calls this,
    task.model.backward(dlogits, saved)                                                  cross-entropy, and this

Logits are a contiguous array of the model's own that `saved` does not hold: their gradient is written over them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from gpulayers.backend import Array
from gpulayers.data import DataError
from gpulayers.layers.layer import Layer
from gpulayers.sampling import Sampling
from gpulayers.training.config import Config
from gpulayers.training.options import ConfigError, fields, flag, option

Figures = dict[str, float]


class Part(NamedTuple):
    """A micro-batch, on the device. targets: integers, the shape of the logits but for the last axis, -100 (IGNORE)
    where nothing is scored. first_sample: index of its first sample in the whole batch, for dropout. The first axis of
    every array counts the samples: threads cut a part along it."""

    first_sample: int
    inputs: tuple[Array, ...]
    targets: Array


class Saved(NamedTuple):
    """A model from a checkpoint. metadata: all of the checkpoint's, what `Task.metadata` gave among it."""

    path: Path
    step: int
    config: Config
    model: Layer
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Writing:
    """What `gpulayers generate` is asked for. Each task takes what it has a use for."""

    prompt: str | None = option(
        None, "gpt: text to go on from; seq2seq: what to translate, each line by itself", default_text="gpt: a new line"
    )
    tokens: int | None = option(
        None, "tokens to write, at most", at_least=0, default_text="gpt: 500; seq2seq: the model's longest"
    )
    beam: int = option(
        1, "gpt, seq2seq: sequences that a search for the likeliest keeps; above 1 nothing is drawn", at_least=1
    )
    length_penalty: float = option(0.0, "above 0, beam search likes longer sequences better", at_least=0, at_most=10)
    stop: tuple[str, ...] = option((), "gpt: texts before which it ends", default_text="none")
    slide: int | None = option(
        None,
        "gpt: tokens that leave the model's view at once when it is full; 1 shows it most, and takes a whole pass each",
        at_least=1,
        default_text="half of the context",
    )
    cut_prompt: bool = option(False, "gpt: read the end of a prompt that is longer than the context")
    cache: bool = option(True, "gpt: keep the keys and values of what was read")

    def refuse(self, task: str, *names: str) -> None:
        """Raises ConfigError where one of these options is given, which would change nothing."""
        known, plain = fields(self), Writing()
        if given := [flag(known[name]) for name in names if getattr(self, name) != getattr(plain, name)]:
            raise ConfigError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} not for {task}")


class Task(ABC):
    """Data and model of one run. A subclass sets what has no value here and overrides what it does otherwise.

    digest: of the data, so that a resume notices when it has changed. description: of the data, for people, one line.
    loss_options: keywords for `cross_entropy` beside reduction= and scale=, such as {"label_smoothing": 0.1}.
    grain: numbers that an op of the model works on for one sample; 0: few, so that threads are left to BLAS.

    Raises DataError where the data cannot be used, `GPUUnavailable` where the backend cannot.
    """

    about: ClassVar[str]  # for --help: what `train` does with this task, what its data is by default, how long it takes
    default: ClassVar[Config]  # the run without any option
    sampling: ClassVar[Sampling] = Sampling()  # how `generate` picks when nothing is said; temperature 0: greedily
    units: ClassVar[str] = "tokens"  # or "images": what the speed counts, and what the loss is a mean over

    config: Config
    model: Layer
    digest: str
    description: str
    loss_options: dict[str, Any]
    grain: int = 0

    def __init__(self, config: Config) -> None:
        self.config, self.loss_options = config, {}

    @classmethod
    def resumed(cls, config: Config, metadata: dict[str, Any]) -> Self:
        """The task of a run that goes on; metadata: what `metadata` gave when it was saved."""
        return cls(config)

    # ------------------------------------------------------------------------------------------------ training

    @abstractmethod
    def parts(self, k: int) -> Iterator[Part]:
        """Batch k, a pure function of (config, k), in `config.training.accumulate` parts."""

    def size(self, part: Part) -> int:
        """How many units are in a part. Must not wait for the device."""
        return part.targets.size

    @abstractmethod
    def measure(self) -> Figures:
        """{"val_loss": mean over the validation part, perhaps "val_accuracy": 0 to 1}; the lowest val_loss is best."""

    def sample(self, step: int) -> str:
        """What to show of the model at this step; "" for nothing. FloatingPointError if it is not finite."""
        return ""

    def pictures(self, folder: Path, step: int) -> None:
        """Write PNGs beside loss.png (attention.png, confusion.png); called after each measurement."""
        return  # most tasks have none

    # ------------------------------------------------------------------------------------------------ saved models

    def metadata(self) -> dict[str, Any]:
        """JSON values for the checkpoint: what `rebuild` and `generate` need beside the config, a vocabulary say.

        Not config, data_digest, best_val_loss, skipped_in_a_row, val_loss, format, version, versions, step.
        """
        return {}

    @classmethod
    @abstractmethod
    def rebuild(cls, config: Config, metadata: dict[str, Any]) -> Layer:
        """The model at its initial values, on its device, without its data. KeyError, ValueError: damaged metadata."""

    @classmethod
    def evaluate(cls, saved: Saved, files: tuple[str, ...]) -> dict[str, str]:
        """What `gpulayers evaluate RUN` prints: name -> value. files: to measure instead of the validation part."""
        if files:
            raise ConfigError(f"--data is not for {saved.config.task}: it is measured on the run's validation part")
        task = cls(saved.config)
        if task.digest != saved.metadata["data_digest"]:
            raise DataError(f"the data is not what {saved.path} was trained on: its digest differs")
        task.model = saved.model
        return {"data": task.description} | shown(task.measure(), cls.units)

    @classmethod
    def generate(cls, saved: Saved, writing: Writing, sampling: Sampling) -> Iterator[str]:
        """What `gpulayers generate RUN` writes, in pieces. Raises ConfigError before the first one."""
        raise ConfigError(f"{saved.path} holds a model that does not write: gpulayers evaluate measures it")

    @classmethod
    def export(cls, saved: Saved, folder: str) -> None:
        """What `gpulayers export RUN FOLDER` writes. Raises ConfigError where there is no such form."""
        raise ConfigError(f"{saved.path} holds a model that has no form in transformers that could be written")

    # ------------------------------------------------------------------------------------------------ settings

    @classmethod
    def beginning_from(cls, config: Config, folder: str) -> Config:
        """What a run starts from that takes its weights from `folder`, for a task with an option --from."""
        return config

    @classmethod
    def tiny(cls, config: Config) -> Config:
        """The smallest run that still goes through everything: what --tiny and the emulated device start from."""
        return config.with_training(steps=5, batch=2)


def shown(figures: Figures, units: str) -> dict[str, str]:
    """For people: {"val_loss": 0.5, "val_accuracy": 0.98} -> loss "0.5000 nats a token", accuracy "98.00 %"."""
    per = {"tokens": "nats a token", "images": "nats an image"}.get(units, "nats")
    text = {}
    for name, value in figures.items():
        name = name.removeprefix("val_")
        if name == "loss":
            text[name] = f"{value:.4f} {per}"
        else:
            text[name] = f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.6g}"
    return text
