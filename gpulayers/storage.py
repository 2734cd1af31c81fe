"""Named tensors in one safetensors file, written so that a crash at any instant leaves the old file or the new one."""

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from gpulayers.backend import Array, device_of, to_device

StrPath = str | os.PathLike[str]


class FileError(RuntimeError):
    """A file that cannot be read or written; the message is one sentence that names it."""


def beside(value: Any, like: Array) -> Array:
    """`value` on the device of `like`."""
    return to_device(value if hasattr(value, "dtype") else np.asarray(value), device_of(like))


def save_tensors(path: StrPath, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write `tensors` and `metadata` to `path`. Raises FileError; a file that was there before is then still whole."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_atomically(path, save(contiguous, metadata))


def write_atomically(path: StrPath, content: bytes) -> None:
    """To a temporary file in the same folder, flushed to the disk, then renamed over `path`."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last. Windows cannot open a folder, and needs no flush."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def load_tensors(path: StrPath) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors, metadata) of a safetensors file. Raises FileError with one sentence for any file that is not one."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FileError(f"{path} is not a whole safetensors file ({error})") from error
