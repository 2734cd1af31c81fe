"""What a run shows while it goes: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Self, TextIO

from tqdm import tqdm

LINE_EVERY = 10.0  # seconds


class Progress:
    """Loss, speed and the time left of a run that is at step `done` of `steps`, on `file` (stderr).

    On a terminal it is tqdm's bar. A log file gets a line every ten seconds and at every measurement instead.

    Nobody may be there to read it any more (a closed pipe, a full disk under the log). That must not end a run in the
    middle of a step, so the error is kept in `failed` and nothing more is written.
    """

    def __init__(self, steps: int, done: int = 0, file: TextIO | None = None, units: str = "tokens") -> None:
        self.file, self.units = file or sys.stderr, units
        self.steps, self.first, self.done = steps, done, done
        self.started = self.last_line = time.monotonic()
        self.figures = ""
        self.failed: OSError | None = None
        self.bar: tqdm | None = None
        if self.file.isatty():
            layout = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {desc}, {remaining} left"
            self.bar = tqdm(total=steps, initial=done, file=self.file, bar_format=layout, dynamic_ncols=True)

    def step(self, loss: float, per_second: float) -> None:
        """One step more."""
        self.done += 1
        self.figures = f"loss {loss:.3f}, {per_second:,.0f} {self.units}/s"
        if self.bar is not None:
            with self._writing():
                self.bar.set_description_str(self.figures, refresh=False)
                self.bar.update()
        elif time.monotonic() - self.last_line > LINE_EVERY:
            self.say(self.line())

    def line(self) -> str:
        seconds = (time.monotonic() - self.started) * (self.steps - self.done) / max(1, self.done - self.first)
        return f"step {self.done}/{self.steps}: {self.figures}, {tqdm.format_interval(seconds)} left"

    def measured(self, figures: Mapping[str, str]) -> None:
        """A measurement on the validation part: name -> value."""
        found = ", ".join(f"{name} {value}" for name, value in figures.items())
        self.say(f"step {self.done}/{self.steps}: validation {found}{', ' + self.figures if self.figures else ''}")

    def say(self, text: str, file: TextIO | None = None) -> None:
        """A line above the bar, on `file` (stderr)."""
        self.last_line = time.monotonic()
        if self.failed is not None:
            return
        with self._writing():
            if self.bar is not None:
                self.bar.write(text, file=file or self.file)
            else:
                print(text, file=file or self.file, flush=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failed = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            with self._writing():
                self.bar.close()


def printable(text: str) -> str:
    """`text` with a replacement for every control character, so that a sample cannot steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
