"""PTX kept between runs, so that a command does not wait for the compiler each time.

A file is named by the digest of all that goes into it: NVRTC's version, source, options, and the bytes of every header
in the caller's include folders. It holds JSON, is written beside its place and then moved there, and whatever is wrong
with it (or with the folder) only means that the compiler runs. Old files go when there are too many.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HEADERS = (".h", ".hpp", ".cuh", ".inl", ".cu")
MOST_FILES = 500


def folder() -> Path:
    """The place for it in the user's cache folder, as the platform has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpulayers" / "ptx"


def include_folders(options: Sequence[str]) -> list[Path]:
    """The folders that the options add to the search for headers."""
    found = [option[2:] for option in options if option.startswith("-I")]
    found += [option.split("=", 1)[1] for option in options if option.startswith("--include-path=")]
    return [Path(one) for one in found]


def headers_digest(options: Sequence[str]) -> str:
    """Of the names and bytes of the headers in the include folders."""
    digest = hashlib.sha256()
    for place in include_folders(options):
        if not place.is_dir():
            continue
        for path in sorted(place.rglob("*")):
            if path.suffix in HEADERS and path.is_file():
                digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def load(key: str) -> tuple[bytes, dict[str, str], str] | None:
    """(PTX, lowered names, log) under a key, or None."""
    try:
        entry = json.loads((folder() / f"{key}.json").read_text(encoding="utf-8"))
        code, names, log = entry["code"], entry["names"], entry["log"]
        if entry["key"] == key and isinstance(code, str) and isinstance(names, dict) and isinstance(log, str):
            return code.encode(), names, log
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def store(key: str, code: bytes, names: dict[str, str], log: str) -> None:
    """Keep an entry, where the folder can be written."""
    text = json.dumps({"key": key, "code": code.rstrip(b"\0").decode(), "names": names, "log": log})
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place, suffix=".draft")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).replace(place / f"{key}.json")
        _prune(place)


def _prune(place: Path) -> None:
    files = list(place.glob("*.json"))
    if len(files) > MOST_FILES:
        for path in sorted(files, key=lambda one: one.stat().st_mtime)[: MOST_FILES // 4]:
            path.unlink(missing_ok=True)
