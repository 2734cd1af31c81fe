"""The settings of a run: four tables of options, read from TOML and the command line, written to `config.toml`.

    task = "gpt"
    [model]      sizes of the network              [optimizer]  how parameters move
    [training]   how long, how much, where         [data]       what is read

[model] and [data] are the task's own (`tasks/<task>.py`), which may also add to [training].
Precedence: the task's defaults, then the file, then the command line.
"""

import contextlib
import dataclasses
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpulayers.optim import SCHEDULES
from gpulayers.optim.check import EPS_FLOOR
from gpulayers.optim.schedule import MOST_STEPS
from gpulayers.storage import StrPath, write_atomically
from gpulayers.training.options import ConfigError, Options, as_table, option, suggestion, with_table

TABLES = ("model", "optimizer", "training", "data")
RULES = ("adamw", "adam", "sgd", "rmsprop", "lion", "adagrad", "nadam", "radam")  # the commonest of OPTIMIZERS
LOW_PRECISION = ("float16", "bfloat16")  # trained through float32 masters


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """How parameters move."""

    name: str = option("adamw", "update rule", choices=RULES, flag="--optimizer")
    lr: float = option(2e-3, "learning rate at its highest", at_least=0, at_most=1e30)
    schedule: str = option("cosine", "course of the learning rate", choices=(*SCHEDULES, "plateau"))
    schedule_steps: int | None = option(
        None, "steps until the schedule has run out; fixed for the life of a run", at_least=1, default_text="as steps"
    )
    warmup: int | None = option(
        None, "steps in which the rate first rises", at_least=0,
        default_text="a 20th of schedule-steps; of less than 2000: 100, or a quarter if that is less",
    )  # fmt: skip
    lr_final: float = option(
        0.05,
        "linear, cosine, polynomial, exponential: part of the rate that is left at the end; cyclic, cosine_restarts, "
        "plateau: its lowest",
        at_least=0,
        at_most=1,
    )
    lr_step_size: int | None = option(
        None, "step: steps between two falls", at_least=1, default_text="a third of schedule-steps"
    )
    lr_gamma: float = option(0.1, "step, multi_step, plateau: factor of a fall", above=0, at_most=1)
    lr_patience: int = option(
        1, "plateau: measurements (--eval-every) in a row without a lower loss that pass before a fall", at_least=0
    )
    weight_decay: float = option(0.1, "decay of matrices and tables; vectors never decay", at_least=0)
    l1: float = option(0.0, "factor of the L1 penalty on matrices and tables", at_least=0)
    clip: float = option(1.0, "largest norm of the whole gradient; 0: any", at_least=0)
    clip_value: float = option(0.0, "largest absolute value of a gradient's element; 0: any", at_least=0)
    beta1: float = option(0.9, "adam, adamw, nadam, radam, lion: memory of the first moment", at_least=0, below=1)
    beta2: float = option(0.99, "the same: memory of the second moment; lion: of the only one", at_least=0, below=1)
    eps: float = option(1e-8, "all but sgd and lion: added to the root of the second moment", at_least=EPS_FLOOR)
    alpha: float = option(0.99, "rmsprop: memory of the gradient's square", at_least=0, below=1)
    momentum: float = option(0.9, "sgd: memory of the velocity", at_least=0)
    nesterov: bool = option(False, "sgd: Nesterov's momentum")

    def for_steps(self, steps: int) -> "OptimizerOptions":
        """With the lengths that depend on the number of steps. Raises ConfigError where values do not fit."""
        horizon = self.schedule_steps or max(1, steps)
        # a short run needs its first steps small too: the rate of a long one's third step makes the loss explode
        warmup = max(horizon // 20, min(100, horizon // 4)) if self.warmup is None else self.warmup
        if warmup > horizon:
            raise ConfigError(f"warmup must be at most schedule_steps, got {warmup} and {horizon}")
        if horizon > MOST_STEPS and self.schedule not in ("constant", "plateau"):
            raise ConfigError(
                f"schedule_steps (by default steps) must be at most {MOST_STEPS}, got {horizon}; "
                f"a longer run takes --schedule constant, or goes on at the last rate"
            )
        if warmup > MOST_STEPS:
            raise ConfigError(f"warmup must be at most {MOST_STEPS}, got {warmup}")
        if self.schedule == "exponential" and self.lr_final == 0:
            raise ConfigError("the exponential schedule takes an lr_final above 0, for it never gets to 0")
        if self.schedule == "plateau" and self.lr_gamma == 1:
            raise ConfigError("the plateau schedule takes an lr_gamma below 1, for it would never fall")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs a momentum above 0")
        step_size = self.lr_step_size or max(1, -(-(horizon - warmup) // 3))
        return dataclasses.replace(self, schedule_steps=horizon, warmup=warmup, lr_step_size=step_size)


@dataclass(frozen=True)
class TrainingOptions(Options):
    """How long, how much at a time, and where."""

    steps: int = option(900, "steps in all", at_least=0)
    batch: int = option(8, "samples (sequences, images) in a step", at_least=1, at_most=2**31 - 1)
    accumulate: int = option(
        1, "parts that a step's batch is computed in: less memory, the same result to rounding", at_least=1
    )
    seed: int = option(0, "of the initial values, the batches, dropout and samples", at_least=0, at_most=2**63 - 1)
    dtype: str = option(
        "float32", "floating type; 16 bits only on a GPU", choices=("float32", "float64", *LOW_PRECISION)
    )
    backend: str = option(
        "numpy",
        "numpy: the CPU; cupy: an NVIDIA GPU; emulated: a GPU's kernels on the CPU, slowly, every access checked",
        choices=("numpy", "cupy", "emulated"),
    )
    threads: int | None = option(
        None,
        "CPU threads, each with its piece of the batch where that has as many samples, or all for matrix products",
        at_least=1,
        at_most=4096,
        default_text="all cores",
    )
    eval_every: int = option(300, "steps between measurements on the validation part; 0: only at the end", at_least=0)
    sample_every: int = option(300, "steps between samples; 0: none", at_least=0)
    health: bool = option(False, "watch each layer: health.jsonl, health.png, and a line when one falls sick")
    health_every: int = option(20, "health: steps between two looks", at_least=1)
    save_every: int = option(300, "steps between checkpoints; 0: only at the start and the end", at_least=0)

    def complete(self) -> Self:
        if self.accumulate > self.batch:
            raise ConfigError(f"accumulate must be at most batch, got {self.accumulate} parts of {self.batch} samples")
        if self.dtype in LOW_PRECISION and self.backend == "numpy":
            raise ConfigError(f"dtype {self.dtype} needs a GPU: choose float32, or --backend cupy (or emulated)")
        return dataclasses.replace(self, threads=self.threads or available_cores())


@dataclass(frozen=True)
class Config:
    """Everything that a run is made from."""

    task: str
    model: Any  # Options of the task
    data: Any  # Options of the task
    optimizer: OptimizerOptions = OptimizerOptions()
    training: Any = TrainingOptions()  # or a subclass of the task's

    def complete(self) -> "Config":
        """Checked, and with every open choice made, so that it says the same on another day. Raises ConfigError."""
        if self.optimizer.schedule == "plateau" and not self.training.eval_every:
            raise ConfigError("the plateau schedule listens to the measurements of eval_every, which must be above 0")
        return dataclasses.replace(
            self,
            model=self.model.complete(),
            training=self.training.complete(),
            optimizer=self.optimizer.for_steps(self.training.steps),
            data=self.data.complete(),
        )

    def with_training(self, **changes: Any) -> "Config":
        """The same run with other values in [training]."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **changes))

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, **{title: as_table(getattr(self, title)) for title in TABLES}}

    def updated(self, content: dict[str, Any], source: str) -> "Config":
        """With the values of a dict of tables, such as a TOML file holds; `source` names it in errors."""
        changes: dict[str, Any] = {}
        for title, values in content.items():
            if title == "task":
                if values != self.task:
                    raise ConfigError(f"{source} is for the task {values!r}, not for {self.task!r}")
            elif title not in TABLES:
                known = ("task", *TABLES)
                raise ConfigError(f"unknown table or key {title!r} in {source}{suggestion(title, known)}")
            elif not isinstance(values, dict):
                raise ConfigError(f"{title} in {source} must be a table, got {values!r}")
            else:
                changes[title] = with_table(getattr(self, title), values, title, source)
        return dataclasses.replace(self, **changes)

    def write(self, path: StrPath) -> None:
        """As TOML, for --config. Raises storage.FileError; ConfigError for the name of a file that is no text."""
        import tomli_w

        head = "# Everything that this run was made from; gpulayers train --config takes it.\n\n"
        try:
            content = (head + tomli_w.dumps(self.to_dict())).encode()
        except UnicodeEncodeError as error:
            line = next(line for line in error.object.splitlines() if error.object[error.start] in line)
            raise ConfigError(
                f"the settings cannot hold {line.strip(' ,')}: a byte of that name is not UTF-8; rename the file"
            ) from None
        write_atomically(path, content)


def read_toml(path: StrPath) -> dict[str, Any]:
    """The content of a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise ConfigError(f"{os.fspath(path)} is not a TOML file: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{os.fspath(path)} is nested too deep for a settings file") from error


def available_cores(groups: StrPath = "/sys/fs/cgroup", own: StrPath = "/proc/self/cgroup") -> int:
    """CPU cores that this process may use: those it may run on, and no more than its container's share of time.

    groups, own: where Linux mounts control groups (version 2) and says which one this process is in.
    """
    count = getattr(os, "process_cpu_count", None)  # from Python 3.13 on
    if count is None and hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = (count or os.cpu_count)() or 1
    quota = _cpu_quota(Path(groups), Path(own))
    return cores if quota == math.inf else min(cores, math.ceil(quota))


def _cpu_quota(groups: Path, own: Path) -> float:
    """Cores' worth of time that the group of this process, and every one above it, allows; infinite without a limit."""
    try:
        path = next(line[4:] for line in own.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):  # another system, or version 1
        return math.inf
    group, quota = groups / path, math.inf
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # "max 100000": no limit
            time, period = map(int, (folder / "cpu.max").read_text().split())
            quota = min(quota, time / period)
        if folder == groups:
            break
    return max(1.0, quota)
