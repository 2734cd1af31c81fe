"""`gpulayers generate RUN`: let a trained model write."""

import argparse
import dataclasses
import sys
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.cli.saved import add_saved, opened
from gpulayers.sampling import Sampling
from gpulayers.training.options import ConfigError
from gpulayers.training.progress import printable
from gpulayers.training.tasks import TASKS, Writing


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "generate",
        usage="gpulayers generate RUN [options]",
        help="let a trained model write",
        description="Write with a trained model, to stdout: the prompt and what follows it, or a translation of each "
        "line of it.",
    )
    add_options(parser.add_argument_group("text"), Writing(), "writing")
    add_options(parser.add_argument_group("sampling"), Sampling(), "sampling")
    add_saved(parser)
    return parser


def run(namespace: argparse.Namespace) -> int:
    writing = Writing(**given(namespace, "writing", Writing()))
    chosen = given(namespace, "sampling", Sampling())
    if writing.prompt == "":
        raise ConfigError("--prompt is empty: give at least one character")
    with opened(namespace) as saved:
        task = TASKS[saved.config.task]
        for piece in task.generate(saved, writing, dataclasses.replace(task.sampling, **chosen)):
            show(piece)
    return 0


def show(text: str) -> None:
    """To stdout at once; exactly into a file, harmlessly on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
