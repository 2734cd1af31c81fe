"""Pairs of a source and a target text: files of them, their vocabularies, and batches.

A batch is (source (B, S), decoder input (B, T), targets (B, T)), int64. With the ids y of a target text,

    source = x eos          input = bos y          targets = y eos

and each is padded to the longest row of its batch: source and input by pad, targets by IGNORE.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpulayers.data.batches import DATA_CALL, IGNORE
from gpulayers.data.text import DataError, read_bytes
from gpulayers.random import philox
from gpulayers.step import Key

PAD, BOS, EOS, UNK = range(4)
SPECIAL = 4  # ids in front of the data's symbols
UNKNOWN = "\ufffd"  # what an unknown symbol is shown as
TOKENS = ("characters", "words")

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class Pair(NamedTuple):
    source: str
    target: str


# ------------------------------------------------------------------------------------------------ vocabulary


def symbols(text: str, tokens: str) -> list[str]:
    """The text as a list of its characters, or of its words: what stands between white space."""
    return list(text) if tokens == "characters" else text.split()


class Vocabulary:
    """Ids of symbols. 0 is padding, 1 begins and 2 ends a target, 3 stands for every unknown symbol."""

    def __init__(self, tokens: str, known: Sequence[str]) -> None:
        """tokens: "characters" or "words". known: the symbols of ids 4, 5, ..."""
        self.tokens, self.known = tokens, list(known)
        self._ids = {symbol: i for i, symbol in enumerate(self.known, SPECIAL)}

    @classmethod
    def of(cls, texts: Iterable[str], tokens: str, most: int) -> "Vocabulary":
        """The symbols of `texts`, sorted; where there are more than `most`, the most frequent ones."""
        counts = Counter(symbol for text in texts for symbol in symbols(text, tokens))
        frequent = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[:most]
        return cls(tokens, sorted(frequent))

    def __len__(self) -> int:
        return SPECIAL + len(self.known)

    def encode(self, text: str) -> np.ndarray:
        """int64 (length,), without bos and eos."""
        return np.array([self._ids.get(symbol, UNK) for symbol in symbols(text, self.tokens)], np.int64)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The symbols up to the first eos; pad and bos are left out. Raises ValueError for an id out of range."""
        found = []
        for i in ids:
            if not 0 <= i < len(self):
                raise ValueError(f"id {i} is outside 0..{len(self) - 1}")
            if i == EOS:
                break
            if i not in (PAD, BOS):
                found.append(UNKNOWN if i == UNK else self.known[i - SPECIAL])
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text; of words, with one space between two."""
        return self.joined(self.pieces(ids))

    def joined(self, parts: Iterable[str]) -> str:
        return ("" if self.tokens == "characters" else " ").join(parts)

    def normal(self, text: str) -> str:
        """`text` as `decode` would write it if every symbol were known."""
        return self.joined(symbols(text, self.tokens))

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "known": self.known}


def vocabulary_from_json(value: Any) -> Vocabulary:
    """The inverse of `to_json`. Raises DataError for anything else."""
    match value:
        case {"tokens": "characters" | "words" as tokens, "known": list(known)} if all(
            isinstance(symbol, str) for symbol in known
        ):
            return Vocabulary(tokens, known)
    raise DataError(f"not a stored vocabulary: {str(value)[:80]}")


# ------------------------------------------------------------------------------------------------ files


def read_pairs(path: str | Path, tokens: str, longest: int) -> list[Pair]:
    """The pairs of a UTF-8 file that has one in each line: source TAB target.

    Lines end with LF or CRLF; a byte order mark in front is passed over. Raises DataError, one sentence with the file
    and the line, for another number of columns, an empty line or column, bytes that are not UTF-8, and a text of more
    than `longest` tokens.
    """
    lines = read_bytes(Path(path)).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line's end
    if not lines:
        raise DataError(f"data file {path} has no lines")
    return [_pair(f"{path}, line {n}", line, tokens, longest) for n, line in enumerate(lines, 1)]


def _pair(where: str, line: bytes, tokens: str, longest: int) -> Pair:
    try:
        columns = line.removesuffix(b"\r").decode().split("\t")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text: byte {line[error.start]:#04x}") from None
    if columns == [""]:
        raise DataError(f"{where} is empty: a line is source TAB target")
    if len(columns) != 2:
        count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        raise DataError(f"{where} has {count}, not 2: a line is source TAB target")
    for name, text in zip(Pair._fields, columns, strict=True):
        if not text.strip():
            raise DataError(f"{where} has an empty {name}")
        if (length := len(symbols(text, tokens))) > longest:
            raise DataError(
                f"{where}: its {name} has {length} {tokens}, more than --longest {longest}: "
                "give a larger one, or leave the line out"
            )
    return Pair(*columns)


def digest_of(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the pairs in order."""
    return hashlib.sha256("\n".join(f"{source}\t{target}" for source, target in pairs).encode()).hexdigest()


def split_pairs(pairs: Sequence[Pair], seed: int, name: str = "the data") -> tuple[list[Pair], list[Pair]]:
    """(pairs to train on, a tenth to measure on), drawn by the seed, each part in the order of the file.

    What has the same source stays together, so that no measured source has been trained on. Raises DataError, which
    calls the pairs `name`, for fewer than two sources.
    """
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    if len(sources) < 2:
        raise DataError(f"{name} has one source only: at least two are needed, one to train on and one to measure on")
    chosen = order(seed, -1, len(sources))[: max(1, len(sources) // 10)]
    measured = {sources[i] for i in chosen}
    return [p for p in pairs if p.source not in measured], [p for p in pairs if p.source in measured]


@functools.lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """`count` numbers shuffled, a function of the arguments; epoch -1 is none that is trained in."""
    words = philox(Key(seed, epoch + 1, DATA_CALL, 0), 0).random_raw(count)  # the same in every version of NumPy
    return np.argsort(words, kind="stable")


def file_pair(pairs: Sequence[Pair], seed: int, index: int) -> Pair:
    """Number `index` of an endless stream: epoch after epoch, each in an order of its own."""
    epoch, place = divmod(index, len(pairs))
    return pairs[order(seed, epoch, len(pairs))[place]]


# ------------------------------------------------------------------------------------------------ batches


class PairBatches:
    """Batch k is pairs k B to (k + 1) B - 1 of a stream, so it is a function of the stream and k alone."""

    def __init__(self, stream: Callable[[int], Pair], vocabularies: tuple[Vocabulary, Vocabulary], batch: int) -> None:
        """stream(index) -> Pair. vocabularies: of the sources and of the targets."""
        if batch < 1:
            raise ValueError(f"PairBatches: batch must be at least 1, got {batch}")
        self.stream, self.vocabularies, self.batch_size = stream, vocabularies, batch

    def batch(self, k: int) -> Batch:
        first = k * self.batch_size
        return encode_pairs([self.stream(first + i) for i in range(self.batch_size)], self.vocabularies)

    def micro_batches(self, k: int, accumulate: int) -> Iterator[tuple[int, Batch]]:
        """Batch k in `accumulate` parts of nearly equal size: (index of the part's first sample, arrays).

        All are as wide as the whole batch, so that dropout draws the same whatever the batch is split into.
        """
        if not 1 <= accumulate <= self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} samples cannot be split in {accumulate} parts")
        source, inputs, targets = self.batch(k)
        for start, stop in pairwise(self.batch_size * i // accumulate for i in range(accumulate + 1)):
            yield start, (source[start:stop], inputs[start:stop], targets[start:stop])


def encode_pairs(pairs: Sequence[Pair], vocabularies: tuple[Vocabulary, Vocabulary]) -> Batch:
    """(source, decoder input, targets) of the pairs."""
    targets = [vocabularies[1].encode(pair.target) for pair in pairs]
    return (
        encode_sources([pair.source for pair in pairs], vocabularies[0]),
        padded([[BOS, *ids] for ids in targets], PAD),
        padded([[*ids, EOS] for ids in targets], IGNORE),
    )


def encode_sources(texts: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    """(B, S): each text, then eos, then pad."""
    return padded([[*vocabulary.encode(text), EOS] for text in texts], PAD)


def padded(rows: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    """int64 (rows, longest of them), with `fill` behind the end of the shorter ones."""
    result = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result
