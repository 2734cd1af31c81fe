"""`gpulayers export RUN FOLDER`: a trained GPT as a folder that transformers opens."""

import argparse
import os
from typing import Any

from gpulayers.cli.arguments import Parser, say
from gpulayers.cli.saved import add_saved, opened
from gpulayers.storage import FileError
from gpulayers.training.tasks import TASKS

DESCRIPTION = """\
Write a trained GPT to a new folder, as transformers has GPT-2: config.json, model.safetensors and, if it was trained
on pieces of words, tokenizer.json. For models without --rotary, such as those that began --from one."""


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "export",
        usage="gpulayers export RUN FOLDER [options]",
        help="write a trained GPT as a folder for transformers",
        description=DESCRIPTION,
    )
    add_saved(parser)
    parser.add_argument("folder", metavar="FOLDER", help="the folder, which must not exist")
    return parser


def run(namespace: argparse.Namespace) -> int:
    if os.path.lexists(namespace.folder):  # `save_pretrained` would replace what was exported before
        raise FileError(f"{namespace.folder} exists already: choose another folder")
    with opened(namespace) as saved:
        TASKS[saved.config.task].export(saved, namespace.folder)
    say(f"written: {namespace.folder}")
    return 0
