"""`gpulayers generate RUN`: let a trained model write."""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from threadpoolctl import threadpool_limits

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.training.generate import Sampling, pieces, stream
from gpulayers.training.options import ConfigError, option
from gpulayers.training.progress import printable
from gpulayers.training.run import open_saved


@dataclass(frozen=True)
class GenerateOptions:
    """What to write, and with which model."""

    prompt: str = option("\n", "text to go on from", default_text="a new line")
    tokens: int = option(500, "tokens to write", at_least=0)
    checkpoint: str | None = option(
        None, "best (by validation loss), last, or a file of the run", metavar="best|last|FILE", default_text="best"
    )
    backend: str = option("numpy", "numpy: the CPU; cupy: an NVIDIA GPU", choices=("numpy", "cupy"))
    threads: int | None = option(
        None, "CPU threads for matrix products", at_least=1, at_most=4096, default_text="as in training"
    )


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "generate",
        usage="gpulayers generate RUN [options]",
        help="let a trained model write",
        description="Write text with a trained model: the prompt and what follows it go to stdout.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder or a checkpoint file")
    add_options(parser.add_argument_group("text"), GenerateOptions(), "generate")
    add_options(parser.add_argument_group("sampling"), Sampling(), "sampling")
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = GenerateOptions(**given(namespace, "generate", GenerateOptions()))
    sampling = Sampling(**given(namespace, "sampling", Sampling()))
    if not options.prompt:
        raise ConfigError("--prompt is empty: give at least one character to go on from")
    saved = open_saved(namespace.run, options.checkpoint, options.backend)
    prompt = saved.tokenizer.encode(options.prompt)
    with threadpool_limits(options.threads or saved.config.training.threads, "blas"):
        show(options.prompt)
        for piece in pieces(saved.tokenizer, stream(saved.model, prompt, options.tokens, sampling)):
            show(piece)
        show("\n")
    return 0


def show(text: str) -> None:
    """To stdout at once; exactly into a file, harmlessly on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
