"""Texts to tokens: in memory, or once into a memory-mapped file where they are large.

A large text is tokenised piece by piece into a file of the cache, under the digest of the text and of the tokenizer,
and looked up there the next time. The file is there whole or not at all, and whoever needs one that another process is
making waits for it. The tokens are the same either way.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpulayers.data.sources import Source, check_unchanged, chunks, digest_of, find_sources, part, pieces
from gpulayers.data.subword import END, SubwordTokenizer
from gpulayers.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, tokenizer_from_json
from gpulayers.storage import (
    FileError,
    StrPath,
    map_tensors,
    only_writer,
    remove_leftovers,
    save_streams,
    write_atomically,
)

IN_MEMORY = 1 << 25  # bytes of text that are tokenised afresh each time: it takes seconds
TOGETHER = 8  # pieces that are encoded at once
EVERY = 10.0  # seconds between two lines in a log file
FORMAT = "gpulayers tokens 1"
TOKENS = "tokens.safetensors"

Tokens = list[np.ndarray]


class Prepared(NamedTuple):
    """Tokens of texts. name: for people. names, train, validation: one for each text. digest: of what was read.

    Each validation array begins with the last training token: see `encode_split`.
    """

    name: str
    names: list[str]
    digest: str
    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens


def prepare(
    paths: Sequence[StrPath] | None,
    tokenizer: str | Tokenizer,
    vocab_size: int | None = None,
    field: str = "text",
    cache: StrPath | None = None,
    whole: bool = False,
    recorded: bool = False,
) -> Prepared:
    """The tokens of files, folders and .jsonl files, the last tenth of each for validation.

    paths: as for `find_sources`. tokenizer: one, "byte", "char", "bpe" (trained on the training part, `vocab_size`
    tokens), or the path of a tokenizer.json or its folder. field: of the lines of .jsonl files.
    cache: a folder for the tokens; None: the user's cache folder, for more than 32 MB of text only.
    whole: no validation part. recorded: `cache` is what a file says, not the user: nothing is written there, but tokens
    are taken from it.

    Raises DataError where the data cannot be used, FileError where the cache cannot be written.
    """
    sources = find_sources(paths, field)
    digest, size = digest_of(sources), sum(source.size for source in sources)
    given, cache = cache, None if recorded else cache
    place = None if cache is None and size <= IN_MEMORY else Path(cache or cache_folder())
    if isinstance(tokenizer, str):
        tokenizer = _tokenizer(tokenizer, vocab_size, sources, digest, place, whole)
    about = [FORMAT, digest, hashlib.sha256(json.dumps(tokenizer.to_json()).encode()).hexdigest(), whole]
    found = _found(_folder(Path(given), about), len(sources), about) if recorded and given is not None else None
    if found is not None:
        train, both = found
    elif place is None:
        train, both = _in_memory(sources, tokenizer, whole)
    else:
        train, both = _in_cache(sources, tokenizer, whole, about, place)
    name = sources[0].name if len(sources) == 1 else f"{sources[0].name} and {len(sources) - 1} more"
    return Prepared(
        name,
        [source.name for source in sources],
        digest,
        tokenizer,
        [tokens[:n] for tokens, n in zip(both, train, strict=True)],
        [tokens[max(n - 1, 0) :] for tokens, n in zip(both, train, strict=True)],
    )


def cache_folder() -> Path:
    """tokens in the user's cache folder, as the platform has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpulayers" / "tokens"


# ------------------------------------------------------------------------------------------------ tokenizers


def _tokenizer(
    kind: str, vocab_size: int | None, sources: list[Source], digest: str, cache: Path | None, whole: bool
) -> Tokenizer:
    """The tokenizer called `kind`; one that is made from the data is kept in the cache, if there is one."""
    if kind == "byte":
        return ByteTokenizer()
    if kind not in ("char", "bpe"):
        return SubwordTokenizer.from_file(kind)
    if cache is None:
        return _made(kind, vocab_size, sources, whole)
    with _entry(cache, [FORMAT, digest, kind, vocab_size, whole]) as entry:
        path = entry / "tokenizer.json"
        with contextlib.suppress(OSError, ValueError):  # not there, or damaged: it is made again
            return tokenizer_from_json(json.loads(path.read_text(encoding="utf-8")))
        tokenizer = _made(kind, vocab_size, sources, whole)
        check_unchanged(sources)
        write_atomically(path, json.dumps(tokenizer.to_json()).encode())
        return tokenizer


def _made(kind: str, vocab_size: int | None, sources: list[Source], whole: bool) -> Tokenizer:
    if kind == "char":
        characters: set[str] = set()
        for source in sources:
            for text in chunks(source, separator_of(kind)):
                characters.update(text)
        return CharTokenizer("".join(characters))
    texts = (piece for source in sources for piece in pieces(_training_part(source, whole)))
    return SubwordTokenizer.train(_shown(texts, "reading", 0, sum(s.size for s in sources)), vocab_size or 4096)


def _training_part(source: Source, whole: bool) -> Iterator[str]:
    """The text to train on as it will be cut, a line break where END will stand: its letters are no text."""
    texts = part(chunks(source, END), 0, _lengths(source, END, whole)[0])
    return ("\n" if text == END else text for text in texts)


def separator_of(tokenizer: Tokenizer | str) -> str:
    """What stands behind each document of a .jsonl file and each file of a folder."""
    return END if isinstance(tokenizer, SubwordTokenizer) and tokenizer.end is not None else "\n\n"


# ------------------------------------------------------------------------------------------------ tokens


def _lengths(source: Source, separator: str, whole: bool) -> tuple[int, int]:
    """(characters to train on, characters in all)"""
    length = sum(map(len, chunks(source, separator)))
    return length if whole else length - length // 10, length


def _encoded(source: Source, tokenizer: Tokenizer, start: int, stop: int, total: int) -> Iterator[np.ndarray]:
    """The tokens of characters start to stop of `total`, in pieces."""
    separator = separator_of(tokenizer)
    texts = pieces(part(chunks(source, separator), start, stop))
    shown = _shown(texts, f"tokenising {source.name}", start, total)
    if isinstance(tokenizer, SubwordTokenizer):
        while some := [text for _, text in zip(range(TOGETHER), shown, strict=False)]:
            yield from tokenizer.encode_many(some)
    else:
        yield from map(tokenizer.encode, shown)


def _in_memory(sources: list[Source], tokenizer: Tokenizer, whole: bool) -> tuple[list[int], Tokens]:
    """(training tokens of each, tokens of each)"""
    train, both, nothing = [], [], np.zeros(0, dtype_of(tokenizer))
    for source in sources:
        cut, end = _lengths(source, separator_of(tokenizer), whole)
        first = np.concatenate([nothing, *_encoded(source, tokenizer, 0, cut, end)])
        train.append(len(first))
        both.append(np.concatenate([first, *_encoded(source, tokenizer, cut, end, end)]))
    check_unchanged(sources)
    return train, both


def _in_cache(
    sources: list[Source], tokenizer: Tokenizer, whole: bool, about: list[Any], cache: Path
) -> tuple[list[int], Tokens]:
    """As `_in_memory`, mapped from a file that is made where it is not there."""
    with _entry(cache, about) as entry:
        found = _found(entry, len(sources), about)
        if found is None:
            streams, metadata = _streams(sources, tokenizer, whole), {"about": json.dumps(about)}
            save_streams(entry / TOKENS, streams, len(sources) + 1, metadata)
            found = _found(entry, len(sources), about)
        if found is None:
            raise FileError(f"{entry / TOKENS} has changed while it was written")
        return found


def _streams(
    sources: list[Source], tokenizer: Tokenizer, whole: bool
) -> Iterator[tuple[str, np.dtype, Iterable[np.ndarray]]]:
    """What goes into the file: the tokens of each text, and how many of them are to train on."""
    train = []

    def counted(source: Source) -> Iterator[np.ndarray]:
        cut, end = _lengths(source, separator_of(tokenizer), whole)
        train.append(0)
        for tokens in _encoded(source, tokenizer, 0, cut, end):
            train[-1] += len(tokens)
            yield tokens
        yield from _encoded(source, tokenizer, cut, end, end)

    for i, source in enumerate(sources):
        yield str(i), dtype_of(tokenizer), counted(source)
    check_unchanged(sources)  # the digest would be that of another text, for all runs to come
    yield "train", np.dtype(np.int64), [np.array(train, np.int64)]


def _found(entry: Path, count: int, about: list[Any]) -> tuple[list[int], Tokens] | None:
    """What an entry of the cache holds; None if it is not there, not whole, or something else."""
    try:
        tensors, metadata = map_tensors(entry / TOKENS, checked=False)
    except FileError:
        return None
    if metadata != {"about": json.dumps(about)} or tensors.keys() != {"train", *map(str, range(count))}:
        return None
    train, both = tensors["train"].tolist(), [tensors[str(i)] for i in range(count)]
    return (train, both) if all(0 <= n <= len(t) for n, t in zip(train, both, strict=True)) else None


def dtype_of(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.min_scalar_type(tokenizer.vocab_size - 1))


def _folder(cache: Path, about: list[Any]) -> Path:
    return cache / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _entry(cache: Path, about: list[Any]) -> Iterator[Path]:
    """The folder of an entry of the cache; inside, no other process has it. Raises FileError."""
    entry = _folder(cache, about)
    try:
        entry.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {entry} for tokens: {error.strerror or error}") from error
    with only_writer(entry, wait=True) as alone:
        if alone:  # otherwise another process may be writing what looks like a leftover
            remove_leftovers(entry)
        yield entry


def _shown(texts: Iterable[str], what: str, done: int, total: int) -> Iterator[str]:
    """The same texts, with a bar on a terminal, or a line now and then in a log file, where it takes long."""
    last, terminal = time.monotonic(), sys.stderr.isatty()
    look: dict[str, Any] = {"unit": "char", "unit_scale": True, "delay": 1, "leave": False, "disable": not terminal}
    from tqdm import tqdm  # with what it imports a tenth of `import gpulayers`, and no array needs it

    bar = tqdm(desc=what, initial=done, total=total, **look)
    with bar:
        for text in texts:
            yield text
            done += len(text)
            bar.update(len(text))
            if not terminal and time.monotonic() - last > EVERY:
                last = time.monotonic()
                with contextlib.suppress(OSError):  # nobody may read it any more
                    print(f"{what}: {100 * done / max(1, total):.0f} %", file=sys.stderr, flush=True)
