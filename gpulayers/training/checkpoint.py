"""Checkpoints: one safetensors file that holds everything a resume needs.

Tensors: `model.<name>`, the moments `m.<name>` and `v.<name>`, `optimizer.applied` and `optimizer.skipped`.
Metadata: each value a JSON text; `format`, `version`, `step` and `versions` are set here, the rest (seed, model and run
configuration, tokenizer, digest of the data, best validation loss) is the trainer's. The batches and the dropout masks
are pure functions of (seed, step), so there is no generator state to keep.

A file is written beside, flushed and renamed; only then are older ones removed. So a crash at any instant leaves the
old files or the new one, and what is left half written has a temporary name that no reader looks at.
"""

import json
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpulayers
from gpulayers.backend import Array, to_numpy
from gpulayers.storage import FileError, StrPath, load_tensors, refuse_not_finite, remove_leftovers, save_tensors

FORMAT = "gpulayers checkpoint"
VERSION = 1
BEST = "checkpoint-best.safetensors"
NUMBERED = re.compile(r"checkpoint-(\d{8,})\.safetensors")


def save_checkpoint(
    folder: StrPath, step: int, tensors: Mapping[str, Array], metadata: Mapping[str, Any], keep: int = 3
) -> Path:
    """Write `checkpoint-<step>.safetensors`, then remove all but the last `keep` of those up to this step.

    metadata: JSON values; infinities survive. Raises FileError (disk full, say): the older checkpoints are then still
    there, and no temporary file is. `checkpoint-best.safetensors` is never removed.
    """
    path = Path(folder) / f"checkpoint-{step:08d}.safetensors"
    _save(path, step, tensors, metadata)
    # Later steps can be there when a run went back because they were broken: they do not count, and do not push this
    # file out.
    older = [other for number, other in numbered_checkpoints(folder) if number <= step]
    for other in older[: -max(keep, 1)]:
        try:
            other.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(f"cannot remove the old checkpoint {other}: {error.strerror or error}", stacklevel=2)
    return path


def save_best(folder: StrPath, step: int, tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> Path:
    """Write `checkpoint-best.safetensors` over the one before. Raises FileError; the one before is then still there."""
    path = Path(folder) / BEST
    _save(path, step, tensors, metadata)
    return path


def _save(path: Path, step: int, tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> None:
    versions = {"gpulayers": gpulayers.__version__, "numpy": np.__version__, "python": platform.python_version()}
    values = {"versions": versions, **metadata, "format": FORMAT, "version": VERSION, "step": step}
    remove_leftovers(path.parent)
    save_tensors(
        path,
        {name: to_numpy(array) for name, array in tensors.items()},
        {key: json.dumps(value) for key, value in values.items()},
    )


def numbered_checkpoints(folder: StrPath) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoints in `folder`, oldest first, whole or not; `checkpoint-best` is not among them."""
    try:
        entries = list(Path(folder).iterdir())
    except OSError as error:
        raise FileError(f"cannot read the run folder {folder}: {error.strerror or error}") from error
    return sorted((int(match[1]), path) for path in entries if (match := NUMBERED.fullmatch(path.name)))


def load_checkpoint(path: StrPath, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(tensors, metadata); prefix="model." leaves the moments on the disk.

    Raises FileError, one sentence, for a file that is missing, cut short, damaged or not one of ours, and for one with
    NaN or infinity in the parameters or moments: no step goes on from that.
    """
    tensors, texts = load_tensors(path, prefix)
    try:
        metadata = {key: json.loads(text) for key, text in texts.items()}
    except (ValueError, RecursionError):
        metadata = {}
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is a safetensors file, but not a checkpoint of gpulayers")
    if metadata.get("version") != VERSION:
        raise FileError(
            f"{path} has checkpoint format {metadata.get('version')!r}; this version of gpulayers reads {VERSION}"
        )
    step = metadata.get("step")
    if type(step) is not int or step < 0:
        raise FileError(f"{path} does not say at which step it was written")
    refuse_not_finite(path, {name: array for name, array in tensors.items() if not name.startswith("optimizer.")})
    return tensors, metadata


def whole_checkpoints(
    folder: StrPath, warn: Callable[[str], Any] = warnings.warn
) -> Iterator[tuple[Path, dict[str, np.ndarray], dict[str, Any]]]:
    """(path, tensors, metadata) of the checkpoints in `folder` that are whole, the newest first.

    Broken ones are passed over, with one sentence to `warn`. `checkpoint-best` comes last, whatever its step: for when
    all others are broken. Raises FileError if the folder cannot be read.
    """
    found = [path for _, path in reversed(numbered_checkpoints(folder))]
    best = Path(folder) / BEST
    for path in [*found, best] if best.is_file() else found:
        try:
            tensors, metadata = load_checkpoint(path)
        except FileError as error:
            warn(f"{error}; passed over")
        else:
            yield path, tensors, metadata


def latest_checkpoint(folder: StrPath, warn: Callable[[str], Any] = warnings.warn) -> Path:
    """The first of `whole_checkpoints`. Raises FileError, with the remedy, if there is none."""
    for path, _, _ in whole_checkpoints(folder, warn):
        return path
    raise none_whole(folder)


def none_whole(folder: StrPath) -> FileError:
    """What to say of a folder from which nothing can go on."""
    whole = " that is whole" if numbered_checkpoints(folder) or (Path(folder) / BEST).is_file() else ""
    config = Path(folder) / "config.toml"
    settings = f" with its settings: gpulayers train --config {config}" if config.is_file() else ""
    return FileError(f"{folder} holds no checkpoint{whole}: start again in another folder{settings}")
