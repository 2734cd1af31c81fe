"""`gpulayers evaluate RUN`: measure a trained model."""

import argparse
from dataclasses import dataclass
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.cli.saved import add_saved, opened
from gpulayers.training.options import option
from gpulayers.training.tasks import TASKS


@dataclass(frozen=True)
class EvaluateOptions:
    """What to measure."""

    files: tuple[str, ...] = option(
        (),
        "files to measure, such as train takes",
        flag="--data",
        metavar="FILE",
        default_text="the validation part",
    )


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "evaluate",
        usage="gpulayers evaluate RUN [options]",
        help="measure a trained model",
        description="Print how good a trained model is, as training measures it: its loss, and what its\ntask counts "
        "besides (gpt: perplexity and bits per byte).",
    )
    add_options(parser.add_argument_group("data"), EvaluateOptions(), "evaluate")
    add_saved(parser)
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = EvaluateOptions(**given(namespace, "evaluate", EvaluateOptions()))
    with opened(namespace) as saved:
        found = TASKS[saved.config.task].evaluate(saved, options.files)
    for name, value in {"checkpoint": f"{saved.path} (step {saved.step})", **found}.items():
        print(f"{name:14}  {value}")
    return 0
