"""`gpulayers train [TASK]`: train a model, or go on with a run."""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from signal import Signals
from typing import Any

from gpulayers.cli.arguments import Parser, UsageError, add_options, given, say
from gpulayers.parallel import ALONE, Communicator, connect, together
from gpulayers.profiling.trace import Trace, check_writable, trace
from gpulayers.profiling.training import calls
from gpulayers.training.config import TABLES, Config, read_toml
from gpulayers.training.loop import Trainer
from gpulayers.training.options import fields, flag, suggestion
from gpulayers.training.run import resume, start
from gpulayers.training.tasks import DEFAULTS, TASKS

FOLDER = """\
The run folder holds config.toml, metrics.jsonl, samples.jsonl, pictures and the checkpoints. Ctrl-C saves and leaves;
gpulayers train --resume RUN goes on, bit for bit as if the run had never stopped."""

TITLES = {"model": "model", "optimizer": "optimizer", "training": "training", "data": "data"}
WITH_RESUME = {"training.steps", "training.backend", "training.threads"}


def add_parser(commands: Any, words: list[str]) -> Parser:
    """The parser for the task that is the first of `words`, gpt by default."""
    task = words[0] if words and words[0] in TASKS else "gpt"
    parser = commands.add_parser(
        "train",
        usage=f"gpulayers train [{'|'.join(TASKS)}] [options]\n       gpulayers train --resume RUN [--steps N]",
        help=f"train a model: {', '.join(TASKS)}",
        description=f"{TASKS[task].about}\n\n{FOLDER}",
    )
    parser.set_defaults(options_of=task)
    parser.add_argument(
        "task",
        nargs="?",
        default="gpt",
        help=f"what to train: {', '.join(TASKS)} (default: gpt), each with its options",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--out", metavar="DIR", help="the run folder, which must not exist (default: runs/<task>-<time>)")
    run.add_argument(
        "--config", metavar="FILE", help="settings in TOML, such as a config.toml of a run; options beside it win"
    )
    run.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run; takes only --steps, --backend, --threads, --trace and --data-parallel",
    )
    run.add_argument(
        "--data-parallel",
        action="store_true",
        help="share every batch out among the processes of mpiexec -n N gpulayers train ...",
    )
    run.add_argument(
        "--tiny", action="store_true", help="start from the smallest sizes (also the default with --backend emulated)"
    )
    run.add_argument("--trace", metavar="FILE", help="write where the time goes, for ui.perfetto.dev")
    for title in TABLES:
        add_options(parser.add_argument_group(TITLES[title]), getattr(DEFAULTS[task], title), title)
    return parser


def run(namespace: argparse.Namespace) -> int:
    ranks = connect() if namespace.data_parallel else ALONE
    with together(ranks):
        if namespace.trace is not None and ranks.rank == 0:
            check_writable(namespace.trace)  # before anything is begun
    trainer, first = (started if namespace.resume is None else resumed)(namespace, ranks)
    if ranks.rank > 0:  # the first rank speaks and traces
        return exit_status(trainer.run())
    if ranks.size > 1:
        first += f", on {ranks.size} ranks"
    return train(trainer, first, namespace.trace)


def started(namespace: argparse.Namespace, ranks: Communicator) -> tuple[Trainer, str]:
    """A new run, and what to say once it goes."""
    with together(ranks):
        config = config_from(namespace)
        refuse_both(config, namespace.trace)
    trainer = start(config, namespace.out, ranks)
    return trainer, f"run folder {trainer.folder}"


def resumed(namespace: argparse.Namespace, ranks: Communicator) -> tuple[Trainer, str]:
    """The run of --resume, and what to say once it goes."""
    with together(ranks):
        options = resume_options(namespace)
    trainer = resume(namespace.resume, warn=say, communicator=ranks, **options)
    with together(ranks):
        refuse_both(trainer.config, namespace.trace)
    where = f"at step {trainer.step} of {trainer.config.training.steps}"
    return trainer, f"going on with {trainer.folder} {where}{beyond_the_schedule(trainer)}"


def beyond_the_schedule(trainer: Trainer) -> str:
    """A line on the rate of the steps that come after the end of the schedule, if there are any."""
    schedule, horizon = trainer.config.optimizer.schedule, trainer.config.optimizer.schedule_steps or 0
    if schedule in ("constant", "plateau") or trainer.config.training.steps <= horizon:
        return ""
    rate = trainer.optimizer.rate(horizon)
    return f"\nthe {schedule} schedule ends at step {horizon}: beyond it the rate stays {rate:g}"


def refuse_both(config: Config, trace_file: str | None) -> None:
    if config.training.health and trace_file is not None:
        raise UsageError("--trace and --health listen to the same calls: choose one of them for this run")


def train(trainer: Trainer, first: str, trace_file: str | None = None) -> int:
    """Train and say what comes of it; `first`: what to say once it goes."""
    about = f"{trainer.task.model.parameter_count():,} parameters; {trainer.task.description}"
    with recording(trainer, trace_file):
        received = trainer.run(lambda: say(f"{first}\n{about}"))
    if received is None:
        say(f"finished: {trainer.folder}")
    else:
        say(f"stopped at step {trainer.step}, saved; gpulayers train --resume {trainer.folder} goes on")
    return exit_status(received)


def exit_status(received: Signals | None) -> int:
    """That of a program which the signal has ended; 0 without one."""
    return 0 if received is None else 128 + received


@contextlib.contextmanager
def recording(trainer: Trainer, file: str | None) -> Iterator[None]:
    """All ranges of the run into a trace file, if there is one to write."""
    if file is None:
        yield
        return
    recorder = Trace()
    with trace(file, trainer.task.model, trainer.optimizer, calls(), recorder):
        yield
    say(f"trace: {file}" + (f", the first {recorder.most:,} ranges; the rest did not fit" if recorder.full else ""))


def config_from(namespace: argparse.Namespace) -> Config:
    """The defaults (or those of --tiny, also on the emulated device, or of the folder of --from), then the file, then
    the command line."""
    config = DEFAULTS[task_of(namespace)]
    changes = {title: given(namespace, title, getattr(config, title)) for title in TABLES}
    content = {} if namespace.config is None else read_toml(namespace.config)
    backend = changes["training"].get("backend", config.updated(content, str(namespace.config)).training.backend)
    if namespace.tiny or backend == "emulated":
        config = TASKS[config.task].tiny(config)
    asked = config.updated(content, str(namespace.config))
    folder = changes["training"].get("start_from", getattr(asked.training, "start_from", None))
    if folder is not None:
        config = TASKS[config.task].beginning_from(config, folder)
    config = config.updated(content, str(namespace.config))
    tables = {title: dataclasses.replace(getattr(config, title), **values) for title, values in changes.items()}
    return dataclasses.replace(config, **tables)


def resume_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """steps, backend and threads. Raises UsageError for any option that was fixed when the run started."""
    names = {f"{title}.{name}": field for title in TABLES for name, field in fields(table_of(namespace, title)).items()}
    refused = [flag(names[name]) for name in vars(namespace) if name in names and name not in WITH_RESUME]
    refused += [f"--{name}" for name in ("out", "config", "tiny") if getattr(namespace, name)]
    if refused:
        taken = "--steps, --backend, --threads, --trace and --data-parallel"
        raise UsageError(f"--resume takes only {taken}, not {', '.join(refused)}")
    return given(namespace, "training", table_of(namespace, "training"))


def task_of(namespace: argparse.Namespace) -> str:
    """The task, whose options were parsed. Raises UsageError."""
    if namespace.task not in TASKS:
        raise UsageError(f"unknown task {namespace.task!r}{suggestion(namespace.task, TASKS) or choices()}")
    if namespace.task != namespace.options_of:  # `train --steps 3 vit` has been read with the options of gpt
        raise UsageError(f"the task comes first: gpulayers train {namespace.task} [options]")
    return namespace.task


def choices() -> str:
    return f"; choose from {', '.join(TASKS)}"


def table_of(namespace: argparse.Namespace, title: str) -> Any:
    return getattr(DEFAULTS[task_of(namespace)], title)
