"""A walk on the terminal."""

from itertools import zip_longest
from typing import Any

import numpy as np

from gpulayers.walk.story import Entry, Gradient, Named, Story

WIDTH = 118
MOST = 12  # rows and columns that are printed whole


def text(story: Story) -> str:
    """The whole story in lines of at most `WIDTH` characters, as far as names and numbers allow."""
    lines = [story.title, "=" * len(story.title), *story.facts]
    for chapter in story.chapters:
        lines += ["", f"--- {chapter.title} {'-' * (WIDTH - 5 - len(chapter.title))}"]
        for entry in chapter.entries:
            lines += ["", *_entry(entry)]
    lines += ["", verdict(story)]
    return "\n".join(line.rstrip() for line in lines)


def verdict(story: Story) -> str:
    if story.agrees:
        return f"every gradient agrees with finite differences of the loss; the worst is off by {story.worst:.1e}"
    wrong = [g.name for chapter in story.chapters for entry in chapter.entries for g in entry.gradients if not g.agrees]
    return f"NOT the finite differences of the loss: {', '.join(wrong)}"


def _entry(entry: Entry) -> list[str]:
    indent = "  " * entry.depth
    lines = [f"{indent}{entry.title}" + (f"    {entry.source}" if entry.source else "")]
    lines += [f"{indent}    {formula}" for formula in entry.formulas]
    blocks = [_block(named) for named in entry.arrays]
    lines += [f"{indent}    {line}" for line in beside(blocks, WIDTH - 4 - len(indent))]
    for gradient in entry.gradients:
        lines += [f"{indent}    {line}" for line in beside(_compared(gradient), WIDTH - 4 - len(indent))]
    return lines


def _compared(gradient: Gradient) -> list[list[str]]:
    off = f"finite differences: {'agree' if gradient.agrees else 'DISAGREE'}, {gradient.error:.1e} apart"
    return [_block((gradient.name, gradient.backward)), [off, *numbers(gradient.numeric)]]


def _block(named: Named) -> list[str]:
    name, array = named
    return [f"{name} {shape(array)}", *numbers(array)]


def shape(array: np.ndarray) -> str:
    return f"({' x '.join(map(str, array.shape))})" if array.ndim else ""


def numbers(array: np.ndarray) -> list[str]:
    """The array in lines, each a row of its last axis; the middle of a long axis is left out."""
    array = np.asarray(array)
    if array.ndim == 0 or array.size == 0:
        return ["  " + (_number(array[()]) if array.size else "empty")]
    rows = array.reshape(-1, array.shape[-1])
    shown = [[_number(rows[i, j]) if j >= 0 else "..." for j in _few(rows.shape[1])] for i in _few(len(rows)) if i >= 0]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in shown]
    if len(rows) > MOST:
        lines.insert(MOST // 2, "  ...")
    return lines


def _few(size: int) -> list[int]:
    """The indices of an axis; of a long one its two ends, and -1 between them."""
    half = MOST // 2
    return list(range(size)) if size <= MOST else [*range(half), -1, *range(size - half, size)]


def _number(value: Any) -> str:
    return f"{float(value):.4g}" if np.asarray(value).dtype.kind == "f" else str(value)


def beside(blocks: list[list[str]], width: int) -> list[str]:
    """Blocks of lines side by side as far as they fit, the rest below."""
    lines: list[str] = []
    row: list[list[str]] = []
    for block in blocks:
        if row and sum(_width(b) + 3 for b in row) + _width(block) > width:
            lines, row = lines + _join(row), []
        row.append(block)
    return lines + _join(row)


def _width(block: list[str]) -> int:
    return max(len(line) for line in block)


def _join(row: list[list[str]]) -> list[str]:
    if not row:
        return []
    widths = [_width(block) for block in row]
    together = zip_longest(*row, fillvalue="")
    return ["   ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip() for cells in together]
