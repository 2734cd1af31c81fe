"""Declared options: one dataclass field holds an option's default, help and range.

From it come the command line (`cli/arguments.py`), the tables of a TOML file and every check, so that an option is
written down once. A value's origin (`--heads`, or `heads in [model] of run.toml`) goes with it into the error.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar, get_args

T = TypeVar("T")
Field = dataclasses.Field[Any]

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
INSIDE: dict[str, Callable[[float, float], bool]] = {
    "at least": lambda value, bound: value >= bound,
    "above": lambda value, bound: value > bound,
    "at most": lambda value, bound: value <= bound,
    "below": lambda value, bound: value < bound,
}


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one sentence that names it and where it came from."""


@dataclass(frozen=True)
class Options:
    """A table of options: a frozen dataclass whose fields are made by `option`."""

    def complete(self) -> Self:
        """Itself with every open choice made and files as absolute paths, so that it says the same on another day.

        Raises ConfigError where single values are right but do not fit each other.
        """
        return self


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    flag: str | None = None,
    alias: str | None = None,
    metavar: str | None = None,
    default_text: str | None = None,
) -> Any:
    """A dataclass field with its help text and the range that its values must lie in.

    flag: its name on the command line, by default the field's; alias: another one. default_text: what --help says where
    the default is None or empty.
    """
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    metadata = {
        "help": help,
        "bounds": {words: bound for words, bound in bounds.items() if bound is not None},
        "choices": choices,
        "flag": flag,
        "alias": alias,
        "metavar": metavar,
        "default_text": default_text,
    }
    return dataclasses.field(default=default, metadata=metadata)


def fields(table: Any) -> dict[str, Field]:
    """The options of a table (a dataclass or an instance) by name."""
    return {field.name: field for field in dataclasses.fields(table)}


def flag(field: Field) -> str:
    """The option's name on the command line."""
    return field.metadata["flag"] or "--" + field.name.replace("_", "-")


def kind(field: Field) -> type:
    """int, float, bool, str, or tuple for a list of texts; `int | None` is an int."""
    annotation: Any = field.type
    if isinstance(annotation, types.UnionType):
        annotation = next(t for t in get_args(annotation) if t is not type(None))
    return getattr(annotation, "__origin__", annotation)


def parse(field: Field, text: Any, origin: str) -> Any:
    """A word of the command line as the option's type, checked."""
    expected = kind(field)
    if expected in (int, float):
        try:
            text = expected(text)
        except ValueError as error:
            raise ConfigError(f"{origin} takes {WORDS[expected]}, got {text!r}") from error
    return check(field, text, origin)


def check(field: Field, value: Any, origin: str) -> Any:
    """`value` in the option's type, if it has that type and lies in its range. Raises ConfigError otherwise."""
    expected = kind(field)
    if expected is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{origin} takes a list of texts, got {value!r}")
        return tuple(value)
    if expected is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if type(value) is not expected:
        raise ConfigError(f"{origin} takes {WORDS[expected]}, got {value!r}")
    if expected is float and not math.isfinite(value):
        raise ConfigError(f"{origin} takes a finite number, got {value}")
    bounds = field.metadata["bounds"]
    if not all(INSIDE[words](value, bound) for words, bound in bounds.items()):
        raise ConfigError(f"{origin} must be {range_text(field)}, got {value}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{origin} must be one of {', '.join(choices)}, got {value!r}{suggestion(value, choices)}")
    return value


def range_text(field: Field) -> str:
    """'at least 0 and below 1'."""
    return " and ".join(f"{words} {bound}" for words, bound in field.metadata["bounds"].items())


def suggestion(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the closest known word, nothing where none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def with_table(options: T, changes: dict[str, Any], title: str, source: str) -> T:
    """`options` (a dataclass instance) with the values of table [title] of the TOML file `source`, checked."""
    known = fields(options)
    checked = {}
    for name, value in changes.items():
        if name not in known:
            raise ConfigError(f"unknown key {name!r} in [{title}] of {source}{suggestion(name, known)}")
        checked[name] = check(known[name], value, f"{name} in [{title}] of {source}")
    return dataclasses.replace(options, **checked)  # pyright: ignore[reportArgumentType]


def as_table(options: Any) -> dict[str, Any]:
    """The values as TOML takes them: without those that are None, tuples as lists."""
    values = {name: getattr(options, name) for name in fields(options)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}
