"""`gather`: everything that a run folder holds, however far the run has come.

A run that was killed, one that has not done a step and one with a damaged file each give what is there; what could not
be read is a sentence in `troubles`.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpulayers.data import DataError
from gpulayers.storage import FileError, StrPath
from gpulayers.training.config import Config, read_toml
from gpulayers.training.health_log import HEALTH
from gpulayers.training.loop import METRICS, SAMPLES
from gpulayers.training.metrics import is_finite, read_metrics
from gpulayers.training.options import ConfigError
from gpulayers.training.run import CONFIG, open_saved
from gpulayers.training.tasks import DEFAULTS
from gpulayers.training.tasks.task import Saved

PICTURES = ("confusion.png",)  # of the folder, that nothing else on the page shows
MOST_BYTES = 4 << 20  # of such a picture


class Run(NamedTuple):
    """name: of the folder, longer where two are called the same. records, samples, health: of the .jsonl files.
    config: None where config.toml cannot be read. saved: the best model, None where there is no whole checkpoint.
    pictures: file name -> PNG. troubles: what could not be read, a sentence each."""

    folder: Path
    name: str
    config: Config | None
    config_text: str
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    health: list[dict[str, Any]]
    saved: Saved | None
    pictures: dict[str, bytes]
    troubles: list[str]

    @property
    def step(self) -> int:
        """The last step on record, 0 where there is none."""
        return max([record["step"] for record in self.records], default=0)

    @property
    def state(self) -> str:
        """How far it is."""
        if self.config is None:
            return f"step {self.step}"
        steps = self.config.training.steps
        if self.step >= steps:
            return f"finished: {steps} steps"
        if not self.step:
            return f"no step done yet, of {steps}"
        return f"at step {self.step} of {steps}: still going, or stopped"

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(what for, the command). Paths are absolute, so that they work from anywhere."""
        folder = shlex.quote(os.path.abspath(self.folder))
        found = []
        if self.config is not None:
            config = shlex.quote(os.path.abspath(self.folder / CONFIG))
            found.append(("repeat it", f"gpulayers train {self.config.task} --config {config}"))
            if self.step < self.config.training.steps:
                found.append(("go on", f"gpulayers train --resume {folder}"))
        if self.saved is not None:
            found.append(("measure", f"gpulayers evaluate {folder}"))
            if self.saved.config.task != "vit":
                found.append(("write", f"gpulayers generate {folder}"))
        return found

    def lowest(self, name: str) -> tuple[int, float] | None:
        """(step, value) of the lowest finite number called `name`."""
        found = [(record[name], record["step"]) for record in self.records if is_finite(record.get(name))]
        return (min(found)[1], min(found)[0]) if found else None

    def last(self, name: str) -> float | None:
        """The last finite number called `name`."""
        return next((record[name] for record in reversed(self.records) if is_finite(record.get(name))), None)

    @property
    def skipped(self) -> int:
        """Steps on record whose loss or gradient was not finite."""
        return sum(
            not is_finite(record.get("loss")) or not is_finite(record.get("grad_norm")) for record in self.records
        )


def gather(folders: Sequence[StrPath]) -> list[Run]:
    """Raises FileError, one sentence, for a folder that is no run folder or is given twice."""
    paths = [Path(folder) for folder in folders]
    for i, path in enumerate(paths):
        if not path.is_dir():
            raise FileError(f"{path} is not a folder" if path.exists() else f"{path} does not exist")
        if not any((path / name).exists() for name in (CONFIG, METRICS)):
            raise FileError(f"{path} is not a run folder: there is neither a {CONFIG} nor a {METRICS} in it")
        if any(path.samefile(other) for other in paths[:i]):
            raise FileError(f"{path} is given twice")
    return [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def _names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that are all different."""
    whole = [path.resolve() for path in paths]
    for depth in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in whole]


def _read(folder: Path, name: str) -> Run:
    troubles: list[str] = []

    def attempt(read: Any, *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except (FileError, ConfigError, DataError, OSError) as error:
            troubles.append(" ".join(str(error).split()))
            return None

    def lines(file: str) -> list[dict[str, Any]]:
        return (attempt(read_metrics, folder / file, troubles.append) or []) if (folder / file).exists() else []

    text = attempt(_text, folder / CONFIG) or ""
    config = attempt(_config, folder / CONFIG)
    saved = attempt(open_saved, folder, None, "numpy", troubles.append)
    pictures = {file: content for file in PICTURES if (content := _picture(folder / file))}
    records = sorted(lines(METRICS), key=lambda record: record["step"])
    samples = [one for one in lines(SAMPLES) if isinstance(one.get("text"), str)]
    return Run(
        folder, name, config, text, records, samples, lines(HEALTH), saved, pictures, list(dict.fromkeys(troubles))
    )


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def _config(path: Path) -> Config:
    content = read_toml(path)
    task = content.get("task")
    if not isinstance(task, str) or task not in DEFAULTS:
        raise ConfigError(f"{path} is for the task {task!r}, which there is not")
    return DEFAULTS[task].updated(content, str(path))


def _picture(path: Path) -> bytes:
    """A PNG, b"" for anything else."""
    try:
        content = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    except OSError:
        return b""
    return content if content.startswith(b"\x89PNG\r\n\x1a\n") else b""
