"""CUDA source as tokens with brackets, functions and `for` headers: as much syntax as planting faults needs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<skip> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#[^\n]* | \s+ )
    | (?P<string> "[^"\n]*" )
    | (?P<number> 0[xX][0-9a-fA-F]+[uUlL]* | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]* )
    | (?P<name> [A-Za-z_]\w* )
    | (?P<operator> <<= | >>= | \+\+ | -- | -> | :: | && | \|\| | << | [-+*/%&|^<>=!]= | >> | . )
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    kind: str  # string, number, name, operator
    text: str
    start: int
    stop: int


class Fault(NamedTuple):
    """One change of a source: text[start:stop] becomes `new`."""

    file: str
    function: str
    kind: str
    start: int
    stop: int
    new: str

    def apply(self, text: str) -> str:
        """The faulty source. It has as many lines as before."""
        lines = text.count("\n", self.start, self.stop) - self.new.count("\n")
        return text[: self.start] + self.new + "\n" * lines + text[self.stop :]

    def line(self, text: str) -> int:
        return text.count("\n", 0, self.start) + 1

    def marked(self, text: str) -> str:
        """The line, with the change as {old → new}. Names the fault as long as the line stays as it is."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.stop)
        old = text[self.start : self.stop]
        line = f"{text[first : self.start]}{{{old} → {self.new}}}{text[self.stop : last]}"
        return " ".join(re.sub(r"\s*//[^\n]*", "", line).split())


@dataclass
class Source:
    """The tokens of one file; comments, strings' insides and preprocessor lines are not among them."""

    name: str
    text: str
    tokens: list[Token] = field(init=False)
    match: dict[int, int] = field(init=False, default_factory=dict)  # index of a bracket -> of its partner
    function: list[str] = field(init=False)  # of each token, "" outside

    def __post_init__(self) -> None:
        found = (Token(m.lastgroup or "", m[0], *m.span()) for m in _TOKEN.finditer(self.text))
        self.tokens = [token for token in found if token.kind != "skip"]
        self._match_brackets()
        self._find_functions()

    def _match_brackets(self) -> None:
        opened: list[int] = []
        for i, token in enumerate(self.tokens):
            if token.text in PAIRS:
                opened.append(i)
            elif token.text in PAIRS.values() and opened:
                j = opened.pop()
                self.match[i], self.match[j] = j, i

    def _find_functions(self) -> None:
        """A function is a name, parameters in brackets, perhaps `const` or initialisers, and a body."""
        self.function = [""] * len(self.tokens)
        i = 0
        while i < len(self.tokens):
            if self.is_name(i) and self.at(i + 1) == "(" and (body := self._body(self.match[i + 1] + 1)):
                stop = self.match[body]
                self.function[i : stop + 1] = [self.at(i)] * (stop + 1 - i)
                i = stop
            i += 1

    def _body(self, i: int) -> int:
        """The `{` of a function whose parameters end before token i; 0 if that is none."""
        while self.at(i) == "const":
            i += 1
        while self.at(i) in (":", ",") and self.is_name(i + 1) and self.at(i + 2) in ("(", "{"):
            i = self.match[i + 2] + 1
        return i if self.at(i) == "{" else 0

    def at(self, i: int) -> str:
        """The text of token i, "" outside."""
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def is_name(self, i: int) -> bool:
        return 0 <= i < len(self.tokens) and self.tokens[i].kind == "name"

    def between(self, first: int, last: int) -> str:
        """The source from token `first` to token `last`, both included."""
        return self.text[self.tokens[first].start : self.tokens[last].stop]

    def spaced(self, i: int) -> bool:
        """Between blanks: a comparison or a product, where a template or a pointer has none."""
        token = self.tokens[i]
        return self.text[token.start - 1].isspace() and self.text[token.stop].isspace()

    def end_of_statement(self, i: int) -> int:
        """Index of the `;` that ends the statement in which token i stands."""
        while self.at(i) not in (";", ""):
            i = self.match[i] + 1 if self.at(i) in PAIRS else i + 1
        return i

    def for_headers(self) -> Iterator[tuple[int, int, int, int]]:
        """(opening bracket, first `;`, second `;`, closing bracket) of each loop."""
        for i, token in enumerate(self.tokens):
            if token.text == "for":
                first = self.end_of_statement(i + 2)
                yield i + 1, first, self.end_of_statement(first + 1), self.match[i + 1]
