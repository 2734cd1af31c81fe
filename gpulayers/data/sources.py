"""Texts of any length, read piece by piece: a file, the documents of a .jsonl file, the files of a folder.

A file is one text, as it is. A .jsonl file is the documents under one field of its lines, and a folder the files in
it, one after the other, each with a separator behind it.
"""

import codecs
import hashlib
import json
import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpulayers.data.text import DEFAULT_NAME, DataError, not_utf8, python_documentation, reading

CHUNK = 1 << 20  # bytes that are read at a time
PIECE = 1 << 18  # characters that are encoded at a time, about


class Source(NamedTuple):
    """One text. files: what it is read from, none for the Python documentation. field: of the lines of .jsonl files.
    size: bytes of the files. stamps: of each file, for `check_unchanged`."""

    name: str
    files: tuple[Path, ...]
    field: str
    folder: bool
    size: int
    stamps: tuple[tuple[int, int], ...] = ()


def find_sources(paths: Sequence[str | os.PathLike[str]] | None, field: str = "text") -> list[Source]:
    """A source for each of `paths`, files or folders; the Python documentation for None.

    Of a folder all files count that are not empty and not hidden, those of folders inside it too, in sorted order.
    Raises DataError, one sentence, for what is missing, unreadable, no file or folder, or empty.
    """
    if paths is None:
        return [Source(DEFAULT_NAME, (), field, False, len(python_documentation().encode()))]
    if not paths:
        raise DataError("no data file was given")
    return [_source(Path(path), field) for path in paths]


def _source(path: Path, field: str) -> Source:
    folder = _is_folder(path)
    files = tuple(_files(path)) if folder else (path,)
    if not files:
        raise DataError(f"data folder {path} holds no file that is not empty")
    stamps = tuple(_stamp(file) for file in files)
    return Source(os.fspath(path), files, field, folder, sum(size for size, _ in stamps), stamps)


def _stamp(file: Path) -> tuple[int, int]:
    """Bytes of a file that can be read, and when it was changed last."""
    with reading(file) as content:
        status = os.fstat(content.fileno())
        return status.st_size, status.st_mtime_ns


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raises DataError if a file is not what it was when it was found: a text is read several times."""
    for source in sources:
        for file, stamp in zip(source.files, source.stamps, strict=True):
            if _stamp(file) != stamp:
                raise DataError(f"data file {file} has changed while it was read: start again when it is complete")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # what is wrong with it will be said where it is read
        return False


def _files(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DataError(f"data folder {error.filename} cannot be read: {error.strerror or error}") from error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and (not path.is_file() or path.stat().st_size):
                yield path


def digest_of(sources: Sequence[Source]) -> str:
    """SHA-256 of all that the texts come from. For files it is that of `load_corpus`."""
    digest = hashlib.sha256()
    for source in sources:
        if source.folder:
            digest.update(f"folder of {len(source.files)} files\0".encode())
        if not source.files:
            content = python_documentation().encode()
            digest.update(len(content).to_bytes(8, "little") + content)
        for path in source.files:
            if _has_documents(path):
                digest.update(f"jsonl {source.field}\0".encode())
            with reading(path) as file:
                digest.update(path.stat().st_size.to_bytes(8, "little"))  # tells ["ab", "c"] from ["a", "bc"]
                while content := file.read(CHUNK):
                    digest.update(content)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ the text


def chunks(source: Source, separator: str) -> Iterator[str]:
    """The text in pieces of any length. Raises DataError for a file or line that cannot be read."""
    if not source.files:
        yield python_documentation()
    for path in source.files:
        if _has_documents(path):
            for document in _documents(path, source.field):
                yield document
                yield separator
        else:
            yield from _decoded(path)
            if source.folder:
                yield separator


def _has_documents(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def _decoded(path: Path) -> Iterator[str]:
    """The characters of a UTF-8 file. Raises DataError."""
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    with reading(path) as file:
        start = file.read(2)
        file.seek(0)
        while content := file.read(CHUNK):
            waiting = decoder.getstate()[0]  # the beginning of a character that the last chunk has cut
            try:
                yield decoder.decode(content)
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset - len(waiting) + error.start, error.object[error.start], start) from None
            offset += len(content)
    if waiting := decoder.getstate()[0]:
        raise not_utf8(path, offset - len(waiting), waiting[0], start)


def _documents(path: Path, field: str) -> Iterator[str]:
    """The texts under `field` in the lines of a .jsonl file. Raises DataError naming the line."""
    with reading(path) as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            where = f"line {number} of data file {path}"
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where} is not JSON: {error}") from error
            text = entry.get(field) if isinstance(entry, dict) else None
            if not isinstance(text, str):
                raise DataError(f"{where} has no text under {field!r}; it has {_has(entry, field)}")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{where} holds {text[error.start]!r}, which is not a character") from None
            yield text


def _has(entry: Any, field: str) -> str:
    """What a line of a .jsonl file has instead of a text, for a sentence."""
    if not isinstance(entry, dict):
        return f"no object but {reprlib.repr(entry)!r}"
    if field in entry:
        return f"{reprlib.repr(entry[field])} there"
    return ", ".join(map(repr, entry))[:200] or "nothing"


def part(texts: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Characters start to stop of a text that comes in pieces."""
    place = 0
    for text in texts:
        first, last = max(start - place, 0), stop - place
        if last <= 0:
            return
        if first < len(text):
            yield text[first:last]
        place += len(text)


def pieces(texts: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """The same text in pieces of at most `size` characters, cut in front of a line break that follows a character.

    Tokens of a byte-level BPE never reach across such a place, so the pieces give the tokens of the whole. Where there
    is none in the second half of a piece, a blank will do, and then any place.
    """
    waiting = ""
    for text in texts:
        waiting += text
        while len(waiting) > size:
            end = _cut(waiting, size)
            yield waiting[:end]
            waiting = waiting[end:]
    if waiting:
        yield waiting


def _cut(text: str, size: int) -> int:
    for separator in "\n ":
        end = size + 1
        while (end := text.rfind(separator, size // 2, end)) > 0:
            if not text[end - 1].isspace():
                return end
    return size
