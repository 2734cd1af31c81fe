"""Text to token ids and back: bytes (the default) or characters. Pieces of words are in `subword.py`."""

from typing import Any, Protocol, Self

import numpy as np

from gpulayers.data.text import Corpus, DataError

KINDS = ("byte", "char")


class Tokenizer(Protocol):
    """What a tokenizer offers. `to_json` is a JSON value from which `tokenizer_from_json` makes the same one again."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Any) -> str: ...

    def byte_count(self, ids: np.ndarray) -> int: ...

    def to_json(self) -> dict[str, Any]: ...


class ByteTokenizer:
    """Token = byte of the UTF-8 text; 256 of them, so every text can be encoded."""

    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        """uint8 (length,). A byte that Python could not decode on the command line comes back as itself.

        Raises DataError for a lone surrogate, which is no character and has no bytes.
        """
        try:
            return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        except UnicodeEncodeError as error:
            raise DataError(f"{text[error.start]!r} at position {error.start} is not a character") from None

    def decode(self, ids: Any) -> str:
        """The text; bytes that are not UTF-8 (a character cut in two, say) become U+FFFD."""
        return checked_ids(ids, self.vocab_size).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def byte_count(self, ids: np.ndarray) -> int:
        """Bytes of the text of `ids`, in UTF-8."""
        return ids.size

    def to_json(self) -> dict[str, Any]:
        return {"kind": "byte"}


class CharTokenizer:
    """Token = one of the characters of `vocabulary`, in its order; repeated ones count once."""

    def __init__(self, vocabulary: str) -> None:
        if not vocabulary:
            raise DataError("a character vocabulary needs at least one character")
        self.vocabulary = "".join(sorted(set(vocabulary)))
        self._codes = _code_points(self.vocabulary)
        self._dtype = np.min_scalar_type(self.vocab_size - 1)

    @classmethod
    def from_corpus(cls, corpus: Corpus) -> Self:
        return cls("".join(sorted(set().union(*corpus.texts))))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """(length,) of the smallest unsigned type. Raises DataError for a character outside the vocabulary."""
        codes = _code_points(text)
        ids = np.minimum(np.searchsorted(self._codes, codes), self.vocab_size - 1)
        if unknown := np.flatnonzero(self._codes[ids] != codes).tolist():
            first = unknown[0]
            raise DataError(
                f"character {text[first]!r} at position {first} is not in the vocabulary, "
                f"the {self.vocab_size} characters of the training data"
            )
        return ids.astype(self._dtype)

    def decode(self, ids: Any) -> str:
        codes = self._codes[checked_ids(ids, self.vocab_size)]
        return codes.tobytes().decode("utf-32-le", "surrogatepass")

    def byte_count(self, ids: np.ndarray) -> int:
        """Bytes of the text of `ids`, in UTF-8."""
        return len(self.decode(ids).encode("utf-8", "surrogatepass"))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "char", "vocabulary": self.vocabulary}


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def checked_ids(ids: Any, vocab_size: int) -> np.ndarray:
    """`ids` as a flat integer array. Raises ValueError for one outside the vocabulary."""
    ids = np.asarray(ids).reshape(-1)
    if ids.size == 0:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"decode takes integer ids, got {ids.dtype}")
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size)).tolist()
    if outside:
        raise ValueError(f"decode: id {ids[outside[0]]} at position {outside[0]} is outside 0..{vocab_size - 1}")
    return ids


def make_tokenizer(kind: str, corpus: Corpus) -> Tokenizer:
    """The tokenizer called `kind` ("byte" or "char") for `corpus`."""
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer.from_corpus(corpus)
    raise ValueError(f"unknown tokenizer {kind!r}; there are {', '.join(KINDS)}")


def tokenizer_from_json(value: Any) -> Tokenizer:
    """The inverse of `to_json`. Raises DataError for anything else."""
    match value:
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "char", "vocabulary": str(vocabulary)}:
            return CharTokenizer(vocabulary)
        case {"kind": "subword", "size": int(size), "tokenizer": dict(content)}:
            from gpulayers.data.subword import SubwordTokenizer

            return SubwordTokenizer(content, size)
    raise DataError(f"not a stored tokenizer: {str(value)[:80]}")
