"""The kinds of faults. Each function takes a `Source` and yields changes: (first token, last token, new text)."""

import random
from collections.abc import Callable, Iterator

from .source import Fault, Source

Change = tuple[int, int, str]
KINDS: dict[str, Callable[[Source], Iterator[Change]]] = {}


def kind(function: Callable[[Source], Iterator[Change]]) -> Callable[[Source], Iterator[Change]]:
    KINDS[function.__name__] = function
    return function


def replaced(source: Source, table: dict[str, str]) -> Iterator[Change]:
    """Operators between blanks, by others."""
    for i, token in enumerate(source.tokens):
        if token.text in table and token.kind == "operator" and source.spaced(i):
            yield i, i, table[token.text]


def operand(source: Source, i: int, ends: tuple[str, ...]) -> int:
    """The last token of the expression that begins with token i and stops before one of `ends`, or a bracket's end."""
    while source.at(i) not in (*ends, ")", "]", "}", ""):
        i = source.match[i] + 1 if i in source.match else i + 1
    return i - 1


@kind
def barrier(source: Source) -> Iterator[Change]:
    """A barrier is dropped."""
    for i, token in enumerate(source.tokens):
        if token.text in ("__syncthreads", "__syncwarp"):
            yield i, source.end_of_statement(i), ";"


@kind
def comparison(source: Source) -> Iterator[Change]:
    """`<` for `<=`, `>` for `>=`, `==` for `!=`, and the other way round."""
    return replaced(source, {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="})


@kind
def arithmetic(source: Source) -> Iterator[Change]:
    """Plus for minus, product for quotient."""
    return replaced(source, {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/"})


@kind
def bits(source: Source) -> Iterator[Change]:
    """Shifts the other way, `&` for `|`."""
    return replaced(source, {"<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|"})


@kind
def logic(source: Source) -> Iterator[Change]:
    """`&&` for `||`."""
    return replaced(source, {"&&": "||", "||": "&&"})


@kind
def shuffle(source: Source) -> Iterator[Change]:
    """Half of the lanes in the mask, the neighbour's lane, another pattern."""
    for i, token in enumerate(source.tokens):
        if token.text.startswith("__shfl"):
            close = source.match[i + 1]
            yield i + 2, operand(source, i + 2, (",",)), "0x0000ffffu"
            yield close - 1, close - 1, f"{source.at(close - 1)} + 1"
            if token.text == "__shfl_xor_sync":
                yield i, i, "__shfl_down_sync"


@kind
def stride(source: Source) -> Iterator[Change]:
    """The size of a block or of the grid is forgotten, or counted twice."""
    for i, token in enumerate(source.tokens):
        if token.text in ("blockDim", "gridDim"):
            yield i, i + 2, "1u"
            yield i, i + 2, f"(2 * {source.between(i, i + 2)})"


@kind
def guard(source: Source) -> Iterator[Change]:
    """`if (...) return;` is dropped; what stands behind another `if` is always done."""
    for i, token in enumerate(source.tokens):
        if token.text == "if" and source.at(i + 1) == "(":  # `if constexpr` is decided before the kernel runs
            close = source.match[i + 1]
            if source.at(close + 1) in ("return", "break", "continue"):
                yield i, source.end_of_statement(close + 1), ";"
            else:
                yield i + 2, close - 1, "true"


@kind
def bound(source: Source) -> Iterator[Change]:
    """A loop begins one later or stops one earlier; a shared array is one shorter."""
    for opening, first, second, _ in source.for_headers():
        starts = [i for i in range(opening, first) if source.at(i) == "="]
        limits = [i for i in range(first, second) if source.at(i) in ("<", "<=", ">") and source.spaced(i)]
        for i in starts[:1]:
            last = operand(source, i + 1, (";", ","))
            start = source.between(i + 1, last)
            yield i + 1, last, "1" if start == "0" else f"{start} + 1"
        for i in limits[:1]:
            last = operand(source, i + 1, (";", "&&", "||"))
            yield i + 1, last, f"{source.between(i + 1, last)} - 1"
    for i, token in enumerate(source.tokens):
        if token.text == "__shared__":
            for k in range(i, source.end_of_statement(i)):
                if source.at(k) == "[" and source.match[k] > k + 1:
                    yield k + 1, source.match[k] - 1, f"{source.between(k + 1, source.match[k] - 1)} - 1"


@kind
def minmax(source: Source) -> Iterator[Change]:
    """The smaller for the larger."""
    pairs = [("fminf", "fmaxf"), ("fmin", "fmax"), ("min", "max")]
    table = dict(pairs) | {b: a for a, b in pairs}
    for i, token in enumerate(source.tokens):
        if token.text in table and source.at(i + 1) == "(":
            yield i, i, table[token.text]


@kind
def index(source: Source) -> Iterator[Change]:
    """Rows for columns, x for y, lane for warp."""
    table = {"rows": "cols", "cols": "rows", "lane": "warp", "warp": "lane"}
    names = {(source.function[i], token.text) for i, token in enumerate(source.tokens)}
    for i, token in enumerate(source.tokens):
        other, declared = table.get(token.text), source.is_name(i - 1) or source.at(i + 1) == "="
        if other and not declared and source.function[i] and (source.function[i], other) in names:
            yield i, i, other
        if token.text in ("threadIdx", "blockIdx") and source.at(i + 2) in ("x", "y"):
            yield i + 2, i + 2, "y" if source.at(i + 2) == "x" else "x"


@kind
def accumulate(source: Source) -> Iterator[Change]:
    """What is to be added, subtracted or multiplied replaces."""
    headers = [range(opening, close) for opening, _, _, close in source.for_headers()]
    for i, token in enumerate(source.tokens):
        if token.text in ("+=", "-=", "*=", "|=") and not any(i in header for header in headers):
            yield i, i, "="


@kind
def constant(source: Source) -> Iterator[Change]:
    """0 for 1, 1 for 0; another number is doubled (float), raised by one (int), or loses its last bit (hexadecimal)."""
    for i, token in enumerate(source.tokens):
        if token.kind != "number" or source.at(i - 2) in ("__launch_bounds__", "alignas"):
            continue
        if token.text.startswith("0x"):
            digits = token.text.rstrip("uUlL")
            new = f"{int(digits, 16) ^ 1:#x}"
        elif "." in token.text or "e" in token.text:
            digits = token.text.rstrip("fF")
            new = repr({0.0: 1.0, 1.0: 0.0}.get(float(digits), 2 * float(digits)))
        else:
            digits = token.text.rstrip("uUlL")
            new = str({0: 1, 1: 0}.get(int(digits), int(digits) + 1))
        yield i, i, new + token.text[len(digits) :]


@kind
def negation(source: Source) -> Iterator[Change]:
    """A minus or a `!` is dropped."""
    for i, token in enumerate(source.tokens):
        before = source.at(i - 1)
        unary = before in (*"(,=[{?:<>+-*/%&|", "&&", "||", "return", "==", "+=", "-=", "<=", ">=")
        if token.text == "!" or (token.text == "-" and unary and source.tokens[i + 1].start == token.stop):
            yield i, i, ""


@kind
def branch(source: Source) -> Iterator[Change]:
    """`a ? b : c` is `a ? c : b`."""
    for i, token in enumerate(source.tokens):
        if token.text == "?":
            colon = operand(source, i + 1, (":",)) + 1
            last = operand(source, colon + 1, (",", ";"))
            if source.at(colon) == ":":
                yes, no = source.between(i + 1, colon - 1), source.between(colon + 1, last)
                yield i + 1, last, f"{no} : {yes}" if "?" not in yes else f"({no}) : ({yes})"


@kind
def alignment(source: Source) -> Iterator[Change]:
    """An address or a length counts as a multiple of 16 bytes without being asked, or when it is one of 8."""
    for i, token in enumerate(source.tokens):
        around = (source.at(i - 1), source.at(i + 1))
        if token.text == "aligned16" and source.function[i] != "aligned16":
            yield i, source.match[i + 1], "true"
        if token.text in ("aligned", "vector", "vectors", "halves", "tables") and "&&" in around:
            yield i, i, "true"
        if source.is_name(i) and [source.at(i + k) for k in range(1, 5)] == ["%", "PACK", "==", "0"]:
            yield i, i + 4, "true"
        if token.text == "15" and around[0] == "&":
            yield i, i, "7"


@kind
def reduction(source: Source) -> Iterator[Change]:
    """The last step of a sum leaves a warp out, or half of the lanes."""
    for i, token in enumerate(source.tokens):
        if source.at(i - 1) == "<" and token.text == "warps":
            yield i, i, "warps - 1"
        if source.at(i - 1) == "<" and source.between(i, min(i + 4, len(source.tokens) - 1)) == "blockDim.x / WARP":
            yield i, i + 4, "blockDim.x / WARP - 1"
        if token.text == "WARP" and source.at(i + 1) == "/" and source.at(i + 2) == "2":
            yield i + 2, i + 2, "4"


@kind
def cast(source: Source) -> Iterator[Change]:
    """A number stays as narrow, or as wide, as it was."""
    types = ("offset", "double", "float", "int", "unsigned", "word64")
    for i, token in enumerate(source.tokens):
        bracketed = token.text in types and source.at(i - 1) == "(" and source.at(i + 1) == ")"
        if bracketed and not source.is_name(i - 2) and source.at(i + 2) not in ("", ";", "{", ")", ","):
            yield i - 1, i + 1, ""


@kind
def call(source: Source) -> Iterator[Change]:
    """A call for its effect is dropped."""
    for i in range(1, len(source.tokens)):
        if not source.is_name(i) or not source.function[i] or source.at(i).startswith("__sync"):
            continue
        k = i + 2 if source.at(i + 1) == "." else i
        alone = source.at(i - 1) in (";", "{", "}", ")", "else") and source.at(k + 1) == "("
        if alone and source.at(source.match[k + 1] + 1) == ";" and source.at(i) not in ("if", "for", "while", "switch"):
            yield i, source.match[k + 1] + 1, ";"


def faults(source: Source) -> list[Fault]:
    """All faults of all kinds, in the order of the text."""
    found = {}
    for name, changes in KINDS.items():
        for first, last, new in changes(source):
            start, stop = source.tokens[first].start, source.tokens[last].stop
            one = Fault(source.name, source.function[first], name, start, stop, new)
            found.setdefault((start, stop, new), one)
    return sorted(found.values())


def sample(every: list[Fault], most: int, seed: int) -> list[Fault]:
    """`most` of the faults of one file, of as many kinds as there are; all if `most` is 0. A larger sample of the same
    seed holds the smaller one."""
    if not most:
        return every
    draw = random.Random(f"{seed} {every[0].file}" if every else seed)
    kinds = sorted({one.kind for one in every})
    draw.shuffle(kinds)
    piles = [draw.sample(pile, len(pile)) for pile in ([one for one in every if one.kind == name] for name in kinds)]
    turns = [pile[turn] for turn in range(max(map(len, piles), default=0)) for pile in piles if turn < len(pile)]
    return sorted(turns[:most])
