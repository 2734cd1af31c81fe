"""Text to train on: the Python documentation that comes with every Python, or files.

A text stays as it is: no newline is converted, and a byte order mark is a character like any other.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

DEFAULT_NAME = "Python documentation (pydoc_data.topics)"


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence that names the file or the lengths."""


class Corpus(NamedTuple):
    """name: for people. names, texts: one per file. digest: SHA-256 of all texts in order, so that a resumed run can
    tell whether it still reads the same data."""

    name: str
    names: list[str]
    texts: list[str]
    digest: str

    def split(self) -> tuple[list[str], list[str]]:
        """(training texts, validation texts): the validation part is the last tenth of each text, in characters."""
        cuts = [len(text) - len(text) // 10 for text in self.texts]
        return (
            [text[:cut] for text, cut in zip(self.texts, cuts, strict=True)],
            [text[cut:] for text, cut in zip(self.texts, cuts, strict=True)],
        )


def load_corpus(paths: Sequence[str | os.PathLike[str]] | None = None) -> Corpus:
    """The texts of `paths`, UTF-8 files; None takes the Python documentation, about half a megabyte.

    Raises DataError, one sentence that names the file, if one is missing, unreadable, a folder, empty or not UTF-8.
    """
    if paths is None:
        names, texts = [DEFAULT_NAME], [python_documentation()]
    else:
        names, texts = [os.fspath(path) for path in paths], [read_text(Path(path)) for path in paths]
    if not texts:
        raise DataError("no data file was given")
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "little") + content)  # the length tells ["ab", "c"] from ["a", "bc"]
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return Corpus(name, names, texts, digest.hexdigest())


def python_documentation() -> str:
    """The language reference by topic, in sorted order, each under its title. The text depends on Python's version."""
    from pydoc_data.topics import topics

    return "\n\n".join(f"{title}\n{'=' * len(title)}\n\n{topics[title].strip()}" for title in sorted(topics)) + "\n"


def read_text(path: Path) -> str:
    """The characters of one UTF-8 file. Raises DataError."""
    content = read_bytes(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error.start, content[error.start], content[:2]) from None


def read_bytes(path: Path) -> bytes:
    """The content of a file that can be read again and is not empty. Raises DataError."""
    with reading(path) as file:
        return file.read()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A file to read that can be read again and is not empty. Raises DataError, in the block too if the disk fails."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise DataError(f"data file {path} is a folder")
        if not stat.S_ISREG(status.st_mode):  # a pipe can be read once, and is waited for
            raise DataError(f"data file {path} is a pipe or a device: give a file, which a resumed run can read again")
        if not status.st_size:
            raise DataError(f"data file {path} is empty")
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"data file {path} does not exist") from None
    except OSError as error:
        raise DataError(f"data file {path} cannot be read: {error.strerror or error}") from error
    except DataError:
        raise
    except ValueError as error:  # a NUL in the name
        raise DataError(f"data file {str(path)!r} cannot be read: {error}") from error


def not_utf8(path: Path, offset: int, byte: int, start: bytes) -> DataError:
    """What to say of a file whose `byte` at `offset` is no UTF-8; it begins with `start`."""
    hint = " (it looks like UTF-16)" if start.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
    return DataError(f"data file {path} is not UTF-8 text: byte {byte:#04x} at offset {offset}{hint}")
