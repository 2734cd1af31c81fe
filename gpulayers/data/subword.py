"""Tokens that are pieces of words, by the library `tokenizers`: loaded from a file, or a byte-level BPE of the data."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from gpulayers.data.text import DataError
from gpulayers.data.tokenizers import checked_ids
from gpulayers.remedies import INSTALL
from gpulayers.storage import StrPath

END = "<|endoftext|>"  # stands between two texts
SMALLEST = 257  # the bytes, and END


class TokenizersMissing(DataError):
    """The library is not installed; the message says how to install it."""


def library() -> Any:
    """The module `tokenizers`. Raises TokenizersMissing."""
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizersMissing(
            f"tokens of pieces of words need the tokenizers package ({error}): {INSTALL['tokenizers']}"
        ) from error
    return tokenizers


class SubwordTokenizer:
    """Token = a piece of a word, as a tokenizer.json of the library `tokenizers` cuts them.

    content: of the tokenizer.json, text or JSON value. size: the ids are counted as so many, for a model whose table
    has more rows than there are tokens; the further ids decode to nothing.
    Raises DataError for another content.
    """

    def __init__(self, content: str | dict[str, Any], size: int | None = None) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        try:
            self._inner = library().Tokenizer.from_str(text)
        except TokenizersMissing:
            raise
        except Exception as error:  # the library has no type of its own
            raise DataError(f"not a tokenizer of the tokenizers library: {error}") from error
        self._inner.no_truncation()  # a long text stays whole
        self._inner.no_padding()
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        self.tokens = _count(vocabulary)
        self.vocab_size = max(self.tokens, size or 0)
        self.end: int | None = vocabulary.get(END)
        self._dtype = np.min_scalar_type(self.vocab_size - 1)
        self._lengths = self._byte_lengths(vocabulary)

    @classmethod
    def from_file(cls, path: StrPath) -> Self:
        """Of a tokenizer.json, or of a folder with one or with GPT-2's vocab.json and merges.txt. Raises DataError."""
        path = Path(path)
        if path.is_dir() and not (path / "tokenizer.json").is_file():
            return cls(_gpt2(path))
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            return cls(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"tokenizer {file} does not exist") from None
        except OSError as error:
            raise DataError(f"tokenizer {file} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"tokenizer {file} is not UTF-8 text: {error}") from error
        except DataError as error:
            raise type(error)(f"{file}: {error}") from error.__cause__

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """The byte-level BPE of `texts`, as GPT-2's: every text can be encoded, and comes back as it was.

        The vocabulary is the 256 bytes, `END`, and the most frequent pairs of neighbours, merged one after the other;
        it ends up smaller than asked where no pair comes twice. texts: pieces of text, read once.
        Source: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword units, 2016;
        Radford et al., Language models are unsupervised multitask learners, 2019, section 2.2.
        """
        if vocab_size < SMALLEST:
            raise DataError(f"a byte-level BPE has at least {SMALLEST} tokens, got a vocab_size of {vocab_size}")
        inner = _byte_level(library().models.BPE())
        alphabet = library().pre_tokenizers.ByteLevel.alphabet()
        trainer = library().trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[END],
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner.to_str())

    def encode(self, text: str) -> np.ndarray:
        """(length,) of the smallest unsigned type. Raises DataError for what is no character."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each of them, on all cores."""
        for text in texts:
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise DataError(f"{text[error.start]!r} at position {error.start} is not a character") from None
        found = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, self._dtype) for one in found]

    def decode(self, ids: Any) -> str:
        """The text; bytes that are not UTF-8 (a character cut in two, say) become U+FFFD."""
        return self._inner.decode(checked_ids(ids, self.vocab_size).tolist(), skip_special_tokens=False)

    def byte_count(self, ids: np.ndarray) -> int:
        """Bytes of the text of `ids`, in UTF-8."""
        if self._lengths is None:
            return len(self.decode(ids).encode())
        return int(self._lengths[checked_ids(ids, self.vocab_size)].sum())

    def filled_up(self, size: int) -> Self:
        """The same, its ids counted as `size`."""
        return type(self)(self._inner.to_str(), size)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "subword", "size": self.vocab_size, "tokenizer": json.loads(self._inner.to_str())}

    def files(self) -> dict[str, bytes]:
        """Name -> content of the files by which transformers knows it."""
        names = {"unk_token": END, "bos_token": END, "eos_token": END} if self.end is not None else {}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}
        return {
            "tokenizer.json": self._inner.to_str(pretty=True).encode(),
            "tokenizer_config.json": json.dumps(config, indent=2).encode(),
        }

    def _byte_lengths(self, vocabulary: dict[str, int]) -> np.ndarray | None:
        """Bytes of each token: a byte-level one has a character for each. None for other tokenizers."""
        content = json.loads(self._inner.to_str())
        if (content.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        added = {entry["content"] for entry in content.get("added_tokens", ())}
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, i in vocabulary.items():
            lengths[i] = len(token.encode()) if token in added else len(token)
        return lengths


def _count(vocabulary: dict[str, int]) -> int:
    """The number of ids. Raises DataError where hardly any id has a token: the library walks over all of them."""
    if not vocabulary:
        raise DataError("the tokenizer has no tokens")
    last = max(vocabulary.values())
    if last > 16 * len(vocabulary) + 4096:
        raise DataError(f"the tokenizer has {len(vocabulary)} tokens, and ids up to {last}: it is damaged")
    return last + 1


def _byte_level(model: Any) -> Any:
    """A tokenizer of the library around `model` that works on bytes, as GPT-2's."""
    inner = library().Tokenizer(model)
    inner.pre_tokenizer = library().pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library().decoders.ByteLevel()
    return inner


def _gpt2(folder: Path) -> str:
    """vocab.json and merges.txt as the text of a tokenizer.json. Raises DataError."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not vocabulary.is_file() or not merges.is_file():
        raise DataError(f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt")
    try:
        _count(library().models.BPE.read_file(str(vocabulary), str(merges))[0])
        inner = _byte_level(library().models.BPE.from_file(str(vocabulary), str(merges)))
    except DataError:
        raise
    except Exception as error:  # the library has no type of its own
        raise DataError(f"{vocabulary} and {merges} are not the files of a BPE: {error}") from error
    if inner.token_to_id(END) is not None:
        inner.add_special_tokens([END])
    return inner.to_str()
