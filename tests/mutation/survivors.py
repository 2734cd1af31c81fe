"""The survivors that docs/mutation.md explains: rows of its tables."""

import re
from typing import NamedTuple

from .campaign import ROOT
from .source import Fault

PAGE = ROOT / "docs" / "mutation.md"


class Key(NamedTuple):
    """What names a fault while its line stays as it is, wherever in the file that is."""

    file: str
    function: str
    kind: str
    line: str  # with the change as {old → new}


def key_of(fault: Fault, text: str) -> Key:
    return Key(fault.file, fault.function, fault.kind, fault.marked(text))


def row(key: Key, why: str) -> str:
    """A row of the table: where, kind, line, why."""
    line = key.line.replace("|", "\\|")
    return f"| {key.file} {key.function} | {key.kind} | `{line}` | {why} |"


def explained() -> dict[Key, str]:
    """Every row of the page, with its reason."""
    found = {}
    for text in PAGE.read_text("utf-8").splitlines() if PAGE.is_file() else []:
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", text)[1:-1]]
        if len(cells) == 4 and cells[2].startswith("`"):
            file, _, function = cells[0].partition(" ")
            found[Key(file, function, cells[1], cells[2].strip("`"))] = cells[3]
    return found
