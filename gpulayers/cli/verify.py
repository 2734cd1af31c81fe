"""`gpulayers verify [OP...]`: a certificate that every body of every op and layer gives what the reference gives."""

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from gpulayers.cli.arguments import Parser, UsageError, add_options, given
from gpulayers.storage import FileError, write_atomically
from gpulayers.training.config import available_cores
from gpulayers.training.options import option
from gpulayers.verify import UnknownName, summary, table, to_json
from gpulayers.verify import run as run_cases

DESCRIPTION = """\
For every op and layer: float64 reference = float32 reference = fast CPU body = kernel, and every gradient by finite
differences, over inputs that hurt. A table shows the worst error of each against its tolerance.

Exit status: 0 if everything passed, 1 if anything failed, 2 if it could not be run."""

FAILED = 1


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify, and where."""

    backend: str = option(
        "numpy",
        "numpy: the CPU bodies; emulated: the kernels too, on the CPU; cupy: the kernels on an NVIDIA GPU",
        choices=("numpy", "emulated", "cupy"),
    )
    json: str | None = option(None, "write every row to FILE", metavar="FILE", default_text="no file")
    quick: bool = option(False, "float32 alone, and without the large cases")
    every: bool = option(False, "a line for every case, not only for the worst of each op, body and dtype")
    jobs: int | None = option(
        None,
        "processes that share the cases out",
        at_least=1,
        default_text="one for each core; one where OPs are named, and on a GPU",
    )


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "verify",
        usage="gpulayers verify [OP...] [options]",
        help="check every op and layer against its reference",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "names", nargs="*", metavar="OP", help="ops and layers, such as layernorm or Linear (default: all)"
    )
    add_options(parser, VerifyOptions(), "verify")
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = VerifyOptions(**given(namespace, "verify", VerifyOptions()))
    if options.json is not None:
        check_writable(options.json)
    try:
        jobs = options.jobs or (1 if namespace.names or options.backend == "cupy" else available_cores())
        certificate = run_cases(options.backend, namespace.names, quick=options.quick, progress=bar, jobs=jobs)
    except UnknownName as error:
        raise UsageError(str(error)) from error
    print(table(certificate.rows, options.every))
    print("\n" + summary(certificate))
    if options.json is not None:
        write_atomically(options.json, to_json(certificate).encode())
    return FAILED if certificate.failed else 0


def bar(cases: list[Any]) -> Any:
    """Progress on stderr, on a terminal only."""
    return tqdm(cases, desc="verify", unit="case", file=sys.stderr, disable=None, dynamic_ncols=True, leave=False)


def check_writable(path: str) -> None:
    """Say before the minutes of work that the result could not be kept. Raises FileError."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path or "."):
        raise FileError(f"cannot write {path}: it is a folder")
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write {path}: {folder} is not a folder that can be written to")
