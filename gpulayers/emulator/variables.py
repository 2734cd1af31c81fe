"""Variables in PTX: declarations, sizes, initial values."""

from __future__ import annotations

import re
import struct

from gpulayers.emulator.errors import ParseError
from gpulayers.emulator.program import DTYPES, Variable

NAME = r"[A-Za-z_$%][\w$]*"
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?P<space>global|const|shared|local|param)\s+"
    r"(?P<attributes>(?:\.attribute\([^)]*\)\s*|\.ptr\s+|\.(?:global|const|shared|local)\s+|\.align\s+\d+\s+)*)"
    r"(?P<vector>\.v[24]\s+)?\.(?P<type>\w+)\s+"
    r"(?P<ptr>(?:\.ptr\s+|\.(?:global|const|shared|local)\s+|\.align\s+\d+\s+)*)"
    rf"(?P<name>{NAME})\s*(?P<array>(?:\[\s*\d*\s*\]\s*)*)(?:=\s*(?P<value>.*))?$",
    re.DOTALL,
)


def split_operands(text: str) -> list[str]:
    """Split at commas outside braces, brackets and parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _literal(text: str, code: str) -> bytes:
    """One element of an initialiser as bytes."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16).to_bytes(DTYPES[code].itemsize, "little")
    if DTYPES[code].kind == "f" and not text.lower().startswith("0x"):
        return struct.pack("<d" if code == "f64" else "<f", float(text))
    size = DTYPES[code].itemsize
    return (int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _initial(value: str, code: str, size: int) -> tuple[bytes, dict[int, str]]:
    data, symbols = b"", {}
    for element in split_operands(value.strip().strip("{}").replace("{", " ").replace("}", " ")):
        symbol = re.fullmatch(rf"(?:generic\()?({NAME})\)?", element)
        if symbol:
            symbols[len(data)] = symbol[1]
            element = "0"
        data += _literal(element, code)
    return data.ljust(size, b"\0"), symbols


def parse_variable(text: str) -> Variable:
    """`.shared .align 4 .b8 name[128]`, a parameter, or a global variable with its value."""
    found = _VARIABLE.match(text.strip())
    if not found:
        raise ParseError(f"PTX variable not understood: {text.strip()}")
    width = DTYPES[found["type"]].itemsize if found["type"] in DTYPES else 16
    lanes = int(found["vector"].strip()[2:]) if found["vector"] else 1
    counts = re.findall(r"\[\s*(\d*)\s*\]", found["array"])
    size = width * lanes
    for count in counts:
        size *= int(count or 0)
    align = re.search(r"\.align\s+(\d+)", found["attributes"])
    data, symbols = _initial(found["value"], found["type"], size) if found["value"] else (None, {})
    dynamic = found["space"] == "shared" and size == 0
    alignment = int(align[1]) if align else width * lanes
    return Variable(found["name"], found["space"], alignment, size, data, symbols, dynamic)
