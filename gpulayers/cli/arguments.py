"""The command line, made from declared options (`training/options.py`)."""

import argparse
import sys
from typing import Any, NoReturn, TypeVar

from gpulayers.training.options import Field, fields, flag, kind, parse

T = TypeVar("T")


class UsageError(Exception):
    """A command line that cannot be understood; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """argparse, with errors as exceptions and nothing abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Formatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def flags(self) -> list[str]:
        """All options that it knows."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Options and help side by side, in lines that are easy to read."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)


def add_options(parser: argparse._ActionsContainer, table: Any, prefix: str) -> None:
    """An argument for every option of `table`; only what is given comes out, as `<prefix>.<name>`."""
    for name, field in fields(table).items():
        options: dict[str, Any] = {"dest": f"{prefix}.{name}", "default": argparse.SUPPRESS}
        options["help"] = help_text(field, getattr(table, name))
        if kind(field) is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = metavar(field)
        if kind(field) is tuple:
            options |= {"nargs": "+", "action": "extend"}
        names = [flag(field), field.metadata["alias"]]
        parser.add_argument(*filter(None, names), **options)


def help_text(field: Field, default: Any) -> str:
    """The option's help and its default."""
    shown = field.metadata["default_text"] or (default if kind(field) is not bool else "yes" if default else "no")
    text = f"{field.metadata['help']} (default: {shown})"
    return text.replace("%", "%%")


def metavar(field: Field) -> str:
    words = {int: "N", float: "X", str: "TEXT", tuple: "TEXT"}
    choices = field.metadata["choices"]
    return field.metadata["metavar"] or ("|".join(choices) if choices else words[kind(field)])


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def given(namespace: argparse.Namespace, prefix: str, table: Any) -> dict[str, Any]:
    """The options of `table` that stand on the command line, checked. Raises ConfigError naming the flag."""
    known = fields(table)
    return {
        name: parse(known[name], value, flag(known[name]))
        for name in known
        if (value := getattr(namespace, f"{prefix}.{name}", None)) is not None
    }
