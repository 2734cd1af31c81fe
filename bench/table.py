"""Plain tables for a terminal, and JSON files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int] | None = None, headed: bool = True
) -> str:
    """Columns aligned, the first to the left and the others to the right. `widths` for a table printed in parts."""
    widths = widths or [max(len(line[k]) for line in (head, *rows)) for k in range(len(head))]

    def text(line: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        return "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip()

    top = [text(head), "  ".join("-" * width for width in widths)] if headed else []
    return "\n".join([*top, *map(text, rows)])


def bar(value: float, longest: float, width: int = 40) -> str:
    return "#" * max(1, round(width * value / longest))


def write_json(path: str | None, content: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nwritten: {path}")
