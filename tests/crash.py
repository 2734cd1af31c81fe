"""Kills training runs at random instants and resumes each until it is done: `python -m tests.crash --kills 200`.

Every run must end as the run that nobody killed: metrics, samples and the tensors of the last and of the best
checkpoint agree bit for bit. After each kill all checkpoints in the folder must be whole and the last one be a step of
that same curve. Half of the kills come by the clock, half at a random call that writes to the disk, before it or after
it, with half of a tensor written as often as not. Exit status 1 where anything differs.

The processes are forked from this one, which has imported everything: a run costs a tenth of a second.
"""

import argparse
import builtins
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpulayers import storage
from gpulayers.cli import main as gpulayers
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint, numbered_checkpoints, whole_checkpoints
from tests.tiny_run import assert_same_run, lines, words

FORMS: tuple[dict[str, Any], ...] = (  # of runs; each is killed in turn
    {"save_every": 1},
    {"save_every": 2, "dtype": "float64", "optimizer": "sgd"},
    {"save_every": 5, "eval_every": 1},
    {"save_every": 0, "sample_every": 1},
)
FIRST = 40  # calls that write to the disk, about, until step 0 is saved
WRITES = ("fsync", "replace", "rename", "unlink", "mkdir", "open", "ftruncate")  # of os


def in_child(work: Callable[[], int], said: Path, kill_after: float | None = None) -> int:
    """Wait status of `work` in a process of its own; killed after so many seconds, if it lives. said: what it says."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(file, stream)
            status = work()
            sys.stdout.flush()
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)  # it is ours until it is waited for, dead or alive
    return os.waitpid(pid, 0)[1]


class Fuse:
    """Counts the calls that write to the disk; kills its own process at call `burns_at`, before it or after it."""

    def __init__(self, burns_at: int | None, after: bool = False) -> None:
        self.count, self.burns_at, self.after = 0, burns_at, after

    def __enter__(self) -> "Fuse":
        for name in WRITES:
            setattr(os, name, self._around(getattr(os, name)))
        builtins.open = self._around(builtins.open)
        replacing = storage.replacing

        @contextlib.contextmanager
        def cut(path: Any) -> Iterator[Any]:
            with replacing(path) as file:
                yield CutFile(file, self)

        storage.replacing = cut
        return self

    def __exit__(self, *_: object) -> None:  # the process ends with it
        pass

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            burnt = self.burns_at is not None and self.count >= self.burns_at
            if burnt and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if burnt:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


class CutFile:
    """A file of which half a tensor is written when the fuse burns."""

    def __init__(self, file: Any, fuse: Fuse) -> None:
        self.file, self.fuse, self.fileno = file, fuse, file.fileno

    def write(self, content: Any) -> None:
        self.fuse.count += 1
        if self.fuse.count == self.fuse.burns_at:
            self.file.write(memoryview(content)[: len(content) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


class Campaign:
    """Kills until `kills` of them have hit a living process. `killed`: where they did."""

    def __init__(self, folder: Path, kills: int, rng: np.random.Generator, forms: list[dict[str, Any]]) -> None:
        self.folder, self.kills, self.rng, self.forms = folder, kills, rng, forms
        self.killed: Counter[str] = Counter()
        self.runs, self.said = 0, folder / "said"

    def run(self) -> None:
        forms = [self._straight(number, form) for number, form in enumerate(self.forms)]
        while self.killed.total() < self.kills:
            form, straight, seconds, calls = forms[self.runs % len(forms)]
            self.runs += 1
            out = self.folder / f"run{self.runs}"
            while self._killed(out, form, seconds, calls):
                self._check(out, straight)
            assert_same_run(straight, out)
            assert not list(self.folder.glob(f".{out.name}.*")), "a folder that was not finished is left"

    def _straight(self, number: int, form: dict[str, Any]) -> tuple[dict[str, Any], Path, float, int]:
        """(form, the folder of a run that is never killed, how long it takes, how many calls write to the disk)."""
        out, calls, started = self.folder / f"straight{number}", self.folder / "calls", time.perf_counter()

        def counted() -> int:
            with Fuse(None) as fuse:
                status = gpulayers(self._words(out, form))
            calls.write_text(str(fuse.count))
            return status

        assert in_child(counted, self.said) == 0, self.said.read_text()
        return form, out, time.perf_counter() - started, int(calls.read_text())

    def _words(self, out: Path, form: dict[str, Any]) -> list[str]:
        return ["train", "--resume", str(out)] if out.exists() else words(out, **form)

    def _killed(self, out: Path, form: dict[str, Any], seconds: float, calls: int) -> bool:
        """Whether the process that starts `out`, or goes on with it, was killed; if not, it has come to its end."""
        arguments, before = self._words(out, form), out.exists()
        if self.rng.random() < 0.5:
            how, status = (
                "the clock",
                in_child(lambda: gpulayers(arguments), self.said, self.rng.uniform(0, 1.05 * seconds)),
            )
        else:
            first = not before and self.rng.random() < 0.5  # the first save is a small part of a run
            call = int(self.rng.integers(1, FIRST if first else calls + 1))
            how, fuse = "a write", Fuse(call, bool(self.rng.integers(2)))

            def burning() -> int:
                with fuse:
                    return gpulayers(arguments)

            status = in_child(burning, self.said)
        if status == 0 or "is finished: it has done" in self.said.read_text():  # killed behind its last word
            return False
        assert os.WIFSIGNALED(status), f"{' '.join(arguments)}: {self.said.read_text()}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        where = "in the run" if before else "after the first save" if out.exists() else "before the first save was done"
        half = list(out.glob(".*.tmp")) or list(self.folder.glob(f".{out.name}.*"))
        self.killed[f"by {how}, {where}{', a file half written' if half else ''}"] += 1
        return True

    def _check(self, out: Path, straight: Path) -> None:
        """What a kill has left: no run, or one whose checkpoints are all whole and of the curve of `straight`."""
        if not out.exists():
            return
        for _, path in numbered_checkpoints(out):
            load_checkpoint(path)  # raises for one that is not whole
        path, _, metadata = next(whole_checkpoints(out, warn=fail))
        wanted = [record for record in lines(straight / loop.METRICS) if record["step"] <= metadata["step"]]
        if wanted:
            kept = (out / loop.METRICS).read_bytes().splitlines()[: len(wanted)]
            (self.folder / "kept.jsonl").write_bytes(b"\n".join(kept))
            assert lines(self.folder / "kept.jsonl") == wanted, f"{path}: its steps are not all in {loop.METRICS}"


def fail(sentence: str) -> None:
    raise AssertionError(sentence)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="so many (default 200)")
    parser.add_argument("--seed", type=int, help="of the instants (default: another one each time, which is printed)")
    parser.add_argument("--forms", type=int, default=len(FORMS), help="of runs, that differ in what is saved when")
    parser.add_argument("--pictures", action="store_true", help="draw loss.png too, which takes most of a run's time")
    parser.add_argument("--backend", default="numpy", choices=("numpy", "emulated"), help="of the runs")
    options = parser.parse_args(arguments)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if options.seed is None else options.seed
    if not options.pictures:
        loop.plot_loss = lambda *_, **__: None
    sizes: dict[str, Any] = {"backend": options.backend}
    if options.backend == "emulated":
        sizes |= {"dim": 8, "context": 4, "batch": 2, "eval_tokens": 4, "dtype": "float32", "steps": 6}
    forms = [{**form, **sizes} for form in FORMS[: options.forms]]
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        campaign = Campaign(Path(folder), options.kills, np.random.default_rng(seed), forms)
        print(f"seed {seed}", flush=True)
        started = time.perf_counter()
        campaign.run()
        seconds = time.perf_counter() - started
    for what, count in sorted(campaign.killed.items()):
        print(f"{count:5} {what}")
    print(f"{campaign.killed.total()} kills of {campaign.runs} runs in {seconds:.0f} s: each run is as never killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
