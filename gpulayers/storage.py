"""Named tensors in one safetensors file, written so that a crash at any instant leaves the old file or the new one.

The library `safetensors` reads; the writer is here, because it must stream (no second copy of the model in memory)
into a temporary file whose name the next save knows how to clean up. The format is eight bytes of header length, a
JSON header, and the arrays: https://huggingface.co/docs/safetensors. Each tensor's CRC-32 goes into the metadata, so
that a file whose length is right and whose bytes are not is noticed too.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from gpulayers.backend import Array, device_of, is_floating, to_device

StrPath = str | os.PathLike[str]

METADATA = "__metadata__"  # the header's entry for texts; no tensor can have this name
CHECKSUMS = (
    "gpulayers.crc32"  # metadata key: JSON object, tensor name -> CRC-32; under METADATA that of all other texts
)
DTYPES = {
    np.dtype(kind): code
    for kind, code in [
        *(("float64", "F64"), ("float32", "F32"), ("float16", "F16"), (ml_dtypes.bfloat16, "BF16")),
        *(("int64", "I64"), ("int32", "I32"), ("int16", "I16"), ("int8", "I8"), ("bool", "BOOL")),
        *(("uint64", "U64"), ("uint32", "U32"), ("uint16", "U16"), ("uint8", "U8")),
    ]
}
KINDS = {code: kind.newbyteorder("<") for kind, code in DTYPES.items()}


class FileError(RuntimeError):
    """A file that cannot be read or written; the message is one sentence that names it."""


def beside(value: Any, like: Array) -> Array:
    """`value` on the device of `like`."""
    return to_device(value if hasattr(value, "dtype") else np.asarray(value), device_of(like))


# ------------------------------------------------------------------------------------------------- atomic files


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[BinaryIO]:
    """A file to write to, in the same folder; at the end of the block flushed to the disk and renamed over `path`.

    If the block or the disk fails, `path` is as it was and the temporary file is gone. Raises FileError.
    """
    path = Path(path)
    if not path.name:
        raise FileError(f"cannot write {path}: it is a folder")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    _flush_folder(path.parent)


def write_atomically(path: StrPath, content: bytes) -> None:
    """`content` to a temporary file in the same folder, flushed to the disk, then renamed over `path`."""
    with replacing(path) as file:
        file.write(content)


def remove_leftovers(folder: StrPath) -> None:
    """Remove the temporary files that a killed `replacing` left in `folder`. Only one process may write there."""
    with contextlib.suppress(OSError):
        for entry in Path(folder).iterdir():
            if re.fullmatch(r"\..+\.\d+\.tmp", entry.name):
                with contextlib.suppress(OSError):
                    entry.unlink()


def filled_folder(paths: Iterable[Path], fill: Callable[[Path], object], leftovers: str) -> Path:
    """The first of `paths` that is not there yet, made whole: `fill(folder)` fills one beside, and a rename follows.

    So a folder is there with all that `fill` writes, or not at all, at whatever instant the process is killed. What a
    killed one left beside, under a temporary name of a folder that matches the pattern `leftovers`, goes.

    Raises FileExistsError when all of them are there, FileError when the disk fails, what `fill` raises; the folder
    that it was filling is then gone.
    """
    first, *others = paths
    _remove_unfinished(first.parent, leftovers)
    temporary = first.with_name(f".{first.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        with only_writer(temporary):  # so that nobody takes it for a leftover
            fill(temporary)
            path = _rename(temporary, [first, *others])
    except BaseException as error:  # Ctrl-C too
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, FileError):
            raise FileError(str(error).replace(str(temporary), str(first))) from error
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise FileError(f"cannot make the folder {first}: {error.strerror or error}") from error
        raise
    _flush_folder(path.parent)
    return path


def _rename(folder: Path, paths: list[Path]) -> Path:
    for path in paths:
        if os.path.lexists(path):  # rename would take the place of an empty folder
            continue
        try:
            return folder.rename(path)
        except OSError:
            if not os.path.lexists(path):  # another process was not faster: the disk fails
                raise
    raise FileExistsError(f"{paths[0]} exists already")


def _remove_unfinished(parent: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        for entry in parent.iterdir():
            if re.fullmatch(rf"\.{name}\.\d+\.tmp", entry.name) and entry.is_dir():
                with contextlib.suppress(FileError), only_writer(entry):
                    shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def only_writer(folder: StrPath, wait: bool = False) -> Iterator[bool]:
    """Inside, no other process gets past here for `folder`. Raises FileError if one has, unless told to wait for it.

    The lock goes with the process, however that ends, and leaves no file. Systems and network folders without such
    locks have none: gives whether there is one.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    held = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                held = True
            except BlockingIOError as error:
                raise FileError(f"another process is writing to {folder}: wait for it, or stop it") from error
        yield held


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last. Windows cannot open a folder, and needs no flush."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ------------------------------------------------------------------------------------------------- tensors


def save_tensors(path: StrPath, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write `tensors` and `metadata` to `path`. Raises FileError; a file that was there before is then still whole."""
    arrays = {name: _plain(name, array) for name, array in tensors.items()}
    # Wide types first: then every array starts at a multiple of its item size, whatever the others' sizes are.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    with replacing(path) as file:
        file.write(_header(arrays, metadata))
        for array in arrays.values():
            file.write(_bytes(array))


def save_streams(
    path: StrPath, streams: Iterable[tuple[str, np.dtype, Iterable[np.ndarray]]], most: int, metadata: Mapping[str, str]
) -> None:
    """Write 1-D arrays that come in pieces, none of them held in memory, for `map_tensors`.

    streams: (name, dtype, pieces) of each, `most` at most. No checksum is kept. Raises FileError, as `save_tensors`.
    """
    longest = {"dtype": "BF16", "shape": [1 << 62], "data_offsets": [1 << 62, 1 << 62]}
    # Lengths are known last and the header comes first: room is left for the longest that it can be.
    room = len(json.dumps({METADATA: dict(metadata), **{f"{i:012}": longest for i in range(most)}})) // 8 * 8 + 8
    header: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    with replacing(path) as file:
        file.write(b" " * (8 + room))
        for name, dtype, pieces in streams:
            start = end
            for piece in pieces:
                end += file.write(_bytes(_plain(name, piece.astype(dtype, copy=False))))
            shape = [(end - start) // dtype.itemsize]
            header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
        file.seek(0)
        file.write(room.to_bytes(8, "little") + json.dumps(header).encode().ljust(room))


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """C-ordered and little-endian; the array itself where it is both already."""
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in DTYPES:
        raise TypeError(f"save_tensors: {name} has dtype {array.dtype}, a file can hold {', '.join(map(str, DTYPES))}")
    return np.asarray(array, dtype.newbyteorder("<"), order="C")


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _header(arrays: dict[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    checksums = {name: zlib.crc32(_bytes(array)) for name, array in arrays.items()}
    checksums[METADATA] = _checksum(metadata)
    header: dict[str, Any] = {METADATA: {**metadata, CHECKSUMS: json.dumps(checksums)}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": DTYPES[array.dtype.newbyteorder("=")],
            "shape": array.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the first array is aligned
    return len(text).to_bytes(8, "little") + text


def load_tensors(path: StrPath, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors whose name starts with `prefix`, metadata) of a safetensors file.

    Raises FileError with one sentence for every file that is not one, is cut short or is damaged. safetensors checks
    all lengths in the header against the file before anything is allocated.
    """
    tensors, metadata = map_tensors(path, prefix)
    return {name: array.copy() for name, array in tensors.items()}, metadata


def map_tensors(path: StrPath, prefix: str = "", checked: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """`load_tensors` without the copies: read-only arrays in the memory-mapped file, fetched from it as they are used.

    checked: False leaves out the checksums, for which the whole file has to be read.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        if not path.is_file():
            raise FileError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
        tensors = _mapped(path, prefix)
        checksums = metadata.pop(CHECKSUMS, None)
        damaged = _damaged(tensors, metadata, checksums) if checked else []
    except FileError:
        raise
    except SafetensorError as error:
        raise FileError(f"{path} is not a whole safetensors file ({error})") from error
    except Exception as error:  # whatever else a strange header leads to: a dtype or a shape that NumPy does not have
        raise FileError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if damaged:
        raise FileError(f"{path} is damaged: the checksum of {damaged[0]} does not match its bytes")
    return tensors, metadata


def _mapped(path: Path, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a file whose header safetensors has checked. Its own reader for NumPy lacks bfloat16 in places."""
    memory = np.asarray(np.memmap(path, np.uint8, "r"))
    start = 8 + int.from_bytes(memory[:8].tobytes(), "little")
    header = json.loads(memory[8:start].tobytes())
    header.pop(METADATA, None)
    tensors = {}
    for name, entry in header.items():
        if not name.startswith(prefix):
            continue
        if entry["dtype"] not in KINDS:
            raise FileError(f"{path} cannot be read: {name} has dtype {entry['dtype']}, which NumPy does not have")
        begin, end = entry["data_offsets"]
        tensors[name] = memory[start + begin : start + end].view(KINDS[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def _damaged(tensors: dict[str, np.ndarray], metadata: dict[str, str], checksums: str | None) -> list[str]:
    """Names whose bytes are not those that were written; files of other programs have no checksums."""
    if checksums is None:
        return []
    written = json.loads(checksums)
    damaged = [name for name, array in tensors.items() if written.get(name) != zlib.crc32(_bytes(array))]
    if written.get(METADATA, _checksum(metadata)) != _checksum(metadata):  # a file of before had none
        damaged.append(METADATA)
    return damaged


def refuse_not_finite(path: StrPath, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises FileError if one of the tensors of the file `path` holds NaN or infinity."""
    for name, array in tensors.items():
        # The ends of its range say it without an array of flags: NaN is both.
        if is_floating(array.dtype) and array.size and not np.isfinite([array.min(), array.max()]).all():
            raise FileError(f"{path} holds NaN or infinity in {name}: take a file from before the training diverged")


def _checksum(metadata: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
