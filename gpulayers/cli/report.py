"""`gpulayers report RUN [RUN...]`: one page on one or several runs."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given, say
from gpulayers.storage import FileError, write_atomically
from gpulayers.training.options import option

DESCRIPTION = """\
Write one self-contained HTML page: the curves of the runs together, and for each the health of its layers, samples,
attention maps, parameters and memory by layer, its configuration and the commands to repeat it.

A run that is still going, was killed or has not done a step gives a page too."""

NAME = "report.html"


@dataclass(frozen=True)
class ReportOptions:
    """What is shown, and where it goes."""

    out: str | None = option(
        None,
        "write the page to FILE",
        metavar="FILE",
        default_text=f"{NAME} in the run's folder; of several runs, here",
    )
    sample: str | None = option(
        None,
        "whose attention maps are shown. gpt: a text; seq2seq: a source; vit: the number of a held-out image",
        default_text="gpt: its last sample; seq2seq: a long one; vit: 0",
    )


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "report",
        usage="gpulayers report RUN [RUN...] [options]",
        help="one page on one or several runs",
        description=DESCRIPTION,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder")
    add_options(parser, ReportOptions(), "report")
    return parser


def run(namespace: argparse.Namespace) -> int:
    from gpulayers.report import gather, page

    options = ReportOptions(**given(namespace, "report", ReportOptions()))
    runs = gather(namespace.runs)
    out = Path(options.out or (runs[0].folder / NAME if len(runs) == 1 else NAME))
    if out.suffix.lower() not in (".html", ".htm"):  # metrics.jsonl, say, would be gone
        raise FileError(f"--out takes a file whose name ends in .html, got {out}")
    if out.is_dir():
        raise FileError(f"{out} is a folder: --out takes a file")
    text = page(runs, options.sample)
    for one in runs:
        for trouble in one.troubles:
            say(f"{one.name}: {trouble}")
    write_atomically(out, text.encode("utf-8", "replace"))
    say(f"written: {out}")
    return 0
