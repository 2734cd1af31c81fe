"""The C types of a kernel's parameters, from the compiler itself.

PTX keeps only sizes. So a probe is appended to the source, an empty template kernel that takes the kernel's type as
its argument; the mangled name that NVRTC gives to `probe<decltype(kernel)>` spells the parameter types, with macros,
typedefs and templates resolved. The names follow the Itanium C++ ABI, of which the part for types is read here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

PROBE = "gpulayers_signature"
PROBE_SOURCE = f"\ntemplate <typename F> __global__ void {PROBE}() {{}}\n"
_KERNEL = re.compile(
    r"(?P<template>template\s*<[^;{}]*>\s*)?(?:extern\s+\"C\"\s*)?(?:static\s+)?__global__\s+"
    r"(?:__launch_bounds__\s*\([^{};]*?\)\s*)?void\s+(?:__launch_bounds__\s*\([^{};]*?\)\s*)?(?P<name>\w+)\s*\("
)

BUILTIN = {  # mangled -> (C name, kind of value, bytes)
    "f": ("float", "float", 4), "d": ("double", "float", 8), "i": ("int", "int", 4),
    "j": ("unsigned int", "int", 4), "l": ("long", "int", 8), "m": ("unsigned long", "int", 8),
    "x": ("long long", "int", 8), "y": ("unsigned long long", "int", 8), "s": ("short", "int", 2),
    "t": ("unsigned short", "int", 2), "c": ("char", "int", 1), "a": ("signed char", "int", 1),
    "h": ("unsigned char", "int", 1), "b": ("bool", "bool", 1), "v": ("void", "any", 0),
    "w": ("wchar_t", "any", 4), "DF16_": ("_Float16", "float", 2), "DF16b": ("__bf16", "bfloat16", 2),
}  # fmt: skip
NAMED = {
    "__half": ("float", 2),
    "__half2": ("float", 2),
    "__nv_bfloat16": ("bfloat16", 2),
    "__nv_bfloat162": ("bfloat16", 2),
}
_VECTOR = re.compile(r"(u?)(char|short|int|longlong|long|float|double)[1-4]$")
_VECTOR_SIZES = {"float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class CType:
    """A C type: `kind` is float, bfloat16, int, bool, pointer or any; `size` in bytes, of an element for vectors."""

    name: str
    kind: str
    size: int
    const: bool = False
    target: CType | None = None

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.name}"


ANY = CType("?", "any", 0)


def kernel_names(source: str) -> list[str]:
    """The kernels in the source text that are no templates."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    return list(dict.fromkeys(found["name"] for found in _KERNEL.finditer(text) if not found["template"]))


def probe_expression(kernel: str) -> str:
    """The name expression that makes NVRTC spell the kernel's type."""
    return f"{PROBE}<decltype({kernel})>"


def parameter_types(lowered: str) -> list[CType] | None:
    """The parameter types spelled by a probe's mangled name; None where the name holds something unknown."""
    try:
        return _Reader(lowered).probe()
    except (ValueError, IndexError, KeyError):
        return None


def _named(name: str) -> CType:
    if name in NAMED:
        return CType(name, *NAMED[name])
    vector = _VECTOR.match(name)
    if vector:
        if vector[2] not in ("float", "double"):
            return CType(name, "any", 0)  # uint4 and the like are read as raw words of whatever lies there
        return CType(name, "float", _VECTOR_SIZES[vector[2]])
    return CType(name, "any", 0)


class _Reader:
    """A reader of mangled types. Every compound type becomes a candidate that `S<number>_` may repeat."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.candidates: list[CType] = []

    def accept(self, prefix: str) -> bool:
        if self.text.startswith(prefix, self.at):
            self.at += len(prefix)
            return True
        return False

    def demand(self, prefix: str) -> None:
        if not self.accept(prefix):
            raise ValueError(prefix)

    def probe(self) -> list[CType]:
        self.demand("_Z")
        self.candidates.append(_named(self.source_name()))
        self.demand("IF")
        self.accept("Y")
        self.demand("v")
        types = []
        while not self.accept("E"):
            types.append(self.type())
        return [] if [str(one) for one in types] == ["void"] else types

    def source_name(self) -> str:
        digits = re.compile(r"\d+").match(self.text, self.at)
        if not digits:
            raise ValueError("name")
        start = digits.end()
        self.at = start + int(digits[0])
        return self.text[start : self.at]

    def remember(self, found: CType) -> CType:
        self.candidates.append(found)
        return found

    def type(self) -> CType:
        for code, description in BUILTIN.items():
            if self.accept(code):
                return CType(*description)
        if self.accept("P") or self.accept("R"):
            target = self.type()
            return self.remember(CType(f"{target}*", "pointer", 8, target=target))
        qualifiers = ""
        while self.text[self.at] in "rVK":
            qualifiers += self.text[self.at]
            self.at += 1
        if qualifiers:
            return self.remember(replace(self.type(), const="K" in qualifiers))
        if self.accept("S"):
            return self.arguments(self.substitution())
        if self.accept("N"):
            return self.nested()
        return self.arguments(self.remember(_named(self.source_name())))

    def substitution(self) -> CType:
        found = re.compile(r"([0-9A-Z]*)_").match(self.text, self.at)
        if not found:
            raise ValueError("substitution")
        self.at = found.end()
        return self.candidates[int(found[1], 36) + 1 if found[1] else 0]

    def arguments(self, template: CType) -> CType:
        """Template arguments make a new type; what they are does not matter here."""
        if not self.accept("I"):
            return template
        while not self.accept("E"):
            self.argument()
        return self.remember(CType(template.name, "any", 0))

    def argument(self) -> None:
        if self.accept("L"):
            self.type()
            self.at = self.text.index("E", self.at) + 1
        else:
            self.type()

    def nested(self) -> CType:
        found = ANY
        while not self.accept("E"):
            if self.accept("S"):
                found = self.substitution()
            elif self.text[self.at] == "I":
                found = self.arguments(found)
            else:
                found = self.remember(_named(self.source_name()))
        return found
