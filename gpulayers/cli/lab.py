"""`gpulayers lab`: what makes a deep network sick, and what cures it."""

import argparse
import shutil
import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from gpulayers.cli.arguments import Parser, UsageError, add_options, given, say
from gpulayers.lab.experiment import LabOptions
from gpulayers.lab.study import Study, resume, start
from gpulayers.lab.table import loss_of, sick_of, table
from gpulayers.training.options import fields, flag

DESCRIPTION = """\
Train one deep feed-forward network again and again, each time with another combination of

  activation      tanh, relu, leaky_relu, prelu, gelu
  initial values  naive (normal, deviation 1), xavier, he
  around a layer  plain, residual, batchnorm, layernorm
  gradient        no clip, clip (by its norm)
  penalty         no penalty, l1, l2

and print a table: the loss at the end, the first sick layer and why. A telling part of them takes two minutes; --full
does all 360 in about a quarter of an hour. The folder gets lab.json, lab.png, and pictures of the gradients,
activations, dead units and updates of each layer. Ctrl-C leaves; gpulayers lab --resume DIR goes on."""


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "lab",
        usage="gpulayers lab [options]\n       gpulayers lab --resume DIR",
        help="what makes a deep network sick, and what cures it",
        description=DESCRIPTION,
    )
    parser.add_argument("--out", metavar="DIR", help="the folder, which must not exist (default: runs/lab-<time>)")
    parser.add_argument("--resume", metavar="DIR", help="go on with a lab that was stopped; takes no other option")
    add_options(parser, LabOptions(), "lab")
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = given(namespace, "lab", LabOptions())
    if namespace.resume is None:
        study = start(LabOptions(**options), namespace.out)
    else:
        refused = [flag(fields(LabOptions())[name]) for name in options] + ["--out"] * (namespace.out is not None)
        if refused:
            raise UsageError(f"--resume takes no other option, not {', '.join(refused)}")
        study = resume(namespace.resume)
    total, done, begun = len(study.cells), len(study.results), []

    def begin() -> None:
        say(f"lab folder {study.folder}: {total - done} of {total} combinations to train")
        begun.append(True)

    try:
        train(study, begin)
    except BaseException as error:
        if namespace.resume is None and not study.results and isinstance(error, Exception):
            shutil.rmtree(study.folder, ignore_errors=True)  # no memory, no disk: there is nothing to go on with
        elif begun:
            say(f"{len(study.results)} of {total} combinations are done; gpulayers lab --resume {study.folder} goes on")
        raise
    study.finish()
    print(table(study.results))
    say(f"results and pictures: {study.folder}")
    return 0


def train(study: Study, begun: Callable[[], object]) -> None:
    """Everything that is left, with a bar on a terminal, and a line for each combination elsewhere."""
    total, done = len(study.cells), len(study.results)
    with tqdm(total=total, initial=done, unit="run", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        for cell, result in study.run(begun):
            bar.set_description_str(str(cell), refresh=False)
            bar.update()
            if bar.disable:
                say(f"{len(study.results)}/{total} {cell}: loss {loss_of(result)}, sick: {sick_of(result)}")
