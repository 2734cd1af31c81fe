"""All combinations of a lab, one after the other, with the results on disk.

A lab folder holds lab.toml (the settings), lab.jsonl (a line for each combination, written as it is done), and at the
end lab.json (all of it in one file) and the pictures. A lab that is stopped, however, goes on behind its last whole
line and ends with the same lab.json, byte for byte: nothing in it depends on the clock.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from gpulayers.data import DataError
from gpulayers.lab.experiment import LabOptions, Text, run_cell
from gpulayers.lab.grid import Cell, default_grid, full_grid, only
from gpulayers.lab.pictures import plot_all
from gpulayers.storage import FileError, StrPath, only_writer, write_atomically
from gpulayers.training.config import read_toml
from gpulayers.training.metrics import MetricsFile, read_metrics
from gpulayers.training.options import ConfigError, as_table, with_table
from gpulayers.training.run import new_folder

SETTINGS, LINES, RESULTS = "lab.toml", "lab.jsonl", "lab.json"
RESULT = {"first", "loss", "stopped", "sick", "well", "health"}  # of a combination, see `run_cell`
HEAD = "# The settings of this lab; gpulayers lab --resume goes by them.\n\n"


class Study:
    """A lab in `folder`. results: of the combinations that are done, in the order of `cells`."""

    def __init__(self, folder: Path, options: LabOptions, text: Text) -> None:
        self.folder, self.options, self.text = folder, options, text
        self.cells = cells_of(options)
        path = folder / LINES
        self.results: list[dict[str, Any]] = read_metrics(path) if path.exists() else []
        wanted = [list(cell) for cell in self.cells[: len(self.results)]]
        whole = all(result.keys() >= RESULT for result in self.results)
        if [result.get("cell") for result in self.results] != wanted or not whole:
            raise FileError(f"{path} does not hold the combinations that {folder / SETTINGS} says")

    def run(self, begun: Callable[[], object] = lambda: None) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Do what is left; hands out each combination as it is done.

        begun: called once nothing stands in the way any more, another process that writes to the folder say.
        """
        done = len(self.results)
        with (
            only_writer(self.folder),
            threadpool_limits(1, "blas"),  # the matrices are too small to share out
            MetricsFile(self.folder / LINES, resume_at=done) as lines,
        ):
            begun()
            for number, cell in enumerate(self.cells[done:], done + 1):
                result = {"step": number, **run_cell(cell, self.options, self.text)}
                lines.write(result)
                self.results.append(result)
                yield cell, result

    def finish(self) -> None:
        """Write lab.json and the pictures."""
        content = {"options": as_table(self.options), "digest": self.text.digest, "results": self.results}
        write_atomically(self.folder / RESULTS, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        plot_all(self.results, self.folder)


def cells_of(options: LabOptions) -> list[Cell]:
    """Raises ConfigError for words that no combination has."""
    return only(full_grid() if options.full else default_grid(), options.only)


def start(
    options: LabOptions, folder: StrPath | None = None, make_text: Callable[[LabOptions], Text] | None = None
) -> Study:
    """A new lab in `folder` (by default runs/lab-<time>). Raises ConfigError, DataError, FileError."""
    import tomli_w

    cells_of(options)  # refuses unknown words before anything is written
    if folder is not None and Path(folder).exists():
        raise ConfigError(f"{folder} exists already: choose another --out, or gpulayers lab --resume {folder}")
    text = (make_text or Text)(options)
    settings = HEAD + tomli_w.dumps({"digest": text.digest, "lab": as_table(options)})
    path = new_folder("lab", folder, lambda unfinished: write_atomically(unfinished / SETTINGS, settings.encode()))
    return Study(path, options, text)


def resume(folder: StrPath, make_text: Callable[[LabOptions], Text] | None = None) -> Study:
    """The lab in `folder`, to go on with. Raises ConfigError, DataError if the text has changed, FileError."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise ConfigError(f"{folder} is not the folder of a lab: it has no {SETTINGS}")
    content = read_toml(path)
    digest, table = content.get("digest"), content.get("lab")
    if not isinstance(table, dict):
        raise ConfigError(f"{path} has no table [lab]")
    options = with_table(LabOptions(), table, "lab", str(path))
    text = (make_text or Text)(options)
    if text.digest != digest:
        raise DataError(f"the text is not what {folder} was started with: its digest differs")
    return Study(Path(folder), options, text)
