"""`gpulayers generate RUN`: let a trained model write."""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.cli.saved import add_saved, opened
from gpulayers.training.generate import Sampling, pieces, stream
from gpulayers.training.options import ConfigError, option
from gpulayers.training.progress import printable


@dataclass(frozen=True)
class GenerateOptions:
    """What to write."""

    prompt: str = option("\n", "text to go on from", default_text="a new line")
    tokens: int = option(500, "tokens to write", at_least=0)


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "generate",
        usage="gpulayers generate RUN [options]",
        help="let a trained model write",
        description="Write text with a trained model: the prompt and what follows it go to stdout.",
    )
    add_options(parser.add_argument_group("text"), GenerateOptions(), "generate")
    add_options(parser.add_argument_group("sampling"), Sampling(), "sampling")
    add_saved(parser)
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = GenerateOptions(**given(namespace, "generate", GenerateOptions()))
    sampling = Sampling(**given(namespace, "sampling", Sampling()))
    if not options.prompt:
        raise ConfigError("--prompt is empty: give at least one character to go on from")
    with opened(namespace) as saved:
        prompt = saved.tokenizer.encode(options.prompt)
        show(options.prompt)
        for piece in pieces(saved.tokenizer, stream(saved.model, prompt, options.tokens, sampling)):
            show(piece)
        show("\n")
    return 0


def show(text: str) -> None:
    """To stdout at once; exactly into a file, harmlessly on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
