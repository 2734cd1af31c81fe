"""`gpulayers walk [MODEL]`: one training step with every number in it."""

import argparse
from dataclasses import dataclass
from typing import Any

from gpulayers.backend import DEVICES, use
from gpulayers.cli.arguments import Parser, UsageError, add_options, given, say
from gpulayers.models.feedforward import ACTIVATIONS
from gpulayers.storage import write_atomically
from gpulayers.training.options import ConfigError, option, suggestion
from gpulayers.walk import EXAMPLES, example, page, play, text

DESCRIPTION = """\
Print one whole training step of a tiny network: every matrix with its shape, every gradient with its formula and its
finite differences, and the update of every parameter.

Exit status: 0; 1 if a gradient is not what finite differences say."""

WRONG = 1


@dataclass(frozen=True)
class WalkOptions:
    """Which step, and where."""

    optimizer: str = option("adam", "update rule", choices=("adam", "sgd"))
    lr: float = option(0.1, "learning rate", at_least=0, at_most=1e30)
    step: int = option(1, "which step is told; those before it are made silently", at_least=1, at_most=10_000)
    activation: str = option(
        "none", "feedforward: of the hidden layers; none: products alone", choices=("none", *ACTIVATIONS)
    )
    seed: int = option(0, "of the initial values", at_least=0, at_most=2**63 - 1)
    dtype: str = option("float32", "floating type", choices=("float32", "float64"))
    backend: str = option(
        "numpy",
        "numpy: the CPU; cupy: an NVIDIA GPU; emulated: a GPU's kernels on the CPU, slowly, every access checked",
        choices=DEVICES,
    )
    html: str | None = option(None, "write the step as one self-contained page", metavar="FILE", default_text="print")


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "walk",
        usage=f"gpulayers walk [{'|'.join(EXAMPLES)}] [options]",
        help="one training step with every number in it",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default="feedforward", help=f"{', '.join(EXAMPLES)} (default: feedforward)")
    add_options(parser, WalkOptions(), "walk")
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = WalkOptions(**given(namespace, "walk", WalkOptions()))
    name = namespace.model
    if name not in EXAMPLES:
        close = suggestion(name, EXAMPLES) or f"; choose from {', '.join(EXAMPLES)}"
        raise UsageError(f"unknown model {name!r}{close}")
    if options.activation != "none" and name != "feedforward":
        raise ConfigError(f"--activation is for feedforward; {name} has its own")
    use(options.backend)
    small = example(name, options.seed, options.activation, options.backend, options.dtype)
    try:
        story = play(name, small, options.optimizer, options.lr, options.step, options.seed, options.backend)
    except FloatingPointError as error:
        raise ConfigError(
            f"{error}: a lower --lr than {options.lr:g} or an earlier --step has numbers to show"
        ) from error
    if options.html is None:
        print(text(story))
    else:
        write_atomically(options.html, page(story).encode())
        say(f"written: {options.html}")
    return 0 if story.agrees else WRONG
