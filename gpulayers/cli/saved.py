"""What the commands on a trained model share: which model, where it runs, on how many threads."""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from gpulayers.backend import DEVICES
from gpulayers.cli.arguments import Parser, add_options, given, say
from gpulayers.training.options import option
from gpulayers.training.run import Saved, open_saved


@dataclass(frozen=True)
class SavedOptions:
    """Which model, and where it runs."""

    checkpoint: str | None = option(
        None, "best (by validation loss), last, or a file of the run", metavar="best|last|FILE", default_text="best"
    )
    backend: str = option(
        "numpy",
        "numpy: the CPU; cupy: an NVIDIA GPU; emulated: a GPU's kernels on the CPU, slowly, every access checked",
        choices=DEVICES,
    )
    threads: int | None = option(
        None, "CPU threads for matrix products", at_least=1, at_most=4096, default_text="as in training"
    )


def add_saved(parser: Parser) -> None:
    """RUN, and the options of `SavedOptions`."""
    parser.add_argument(
        "run", metavar="RUN", help="a run folder, a checkpoint file, or a folder of a GPT-2 of transformers"
    )
    add_options(parser.add_argument_group("model"), SavedOptions(), "saved")


@contextlib.contextmanager
def opened(namespace: argparse.Namespace) -> Iterator[Saved]:
    """The model that the command line names; inside, BLAS has its threads. Raises as `open_saved`."""
    options = SavedOptions(**given(namespace, "saved", SavedOptions()))
    saved = open_saved(namespace.run, options.checkpoint, options.backend, warn=say)
    with threadpool_limits(options.threads or saved.config.training.threads, "blas"):
        yield saved
