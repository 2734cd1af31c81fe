"""One process per variant. The parent sends a line of JSON, the worker does it and answers with a line of JSON.

    load NAME FACTORY OPTIONS   import the factory's module, then build the subject
    run NAME STEPS SECONDS CLOCK    time at least STEPS calls and at least SECONDS; report who else used the cores
    drop NAME                   forget the subject
    call FUNCTION OPTIONS       any function "module:name", for figures of the process itself

A worker that waits for its line uses no core, so one variant is active at a time.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bench import machine

ROOT = Path(__file__).resolve().parent.parent
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # a forced old kernel costs 1.5 times


class Subject(Protocol):
    """What is measured. `facts` are figures found while it was built and warmed up, such as losses."""

    facts: dict[str, Any]

    def step(self) -> None: ...


class WorkerError(RuntimeError):
    """A worker failed; the message is its own."""


class Worker:
    """The parent's end."""

    def __init__(
        self,
        name: str,
        threads: int,
        environment: dict[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "bench.worker"),
    ) -> None:
        variables = {key: value for key, value in os.environ.items() if key not in UNSET}
        for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            variables[key] = str(threads)
        variables.update(environment or {})
        self.name = name
        self.process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker {self.name} died with exit status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Server:
    """The worker's end: the subjects it holds, and one method per command."""

    def __init__(self) -> None:
        self.subjects: dict[str, Subject] = {}

    def load(self, name: str, factory: str, options: dict[str, Any]) -> dict[str, Any]:
        """Memory is counted from here on: the library is imported, the subject does not exist yet."""
        make = _find(factory)
        machine.reset_peak_memory()
        before = machine.memory("VmRSS")
        self.subjects[name] = subject = make(**options)
        peak = machine.memory("VmHWM")
        return {**subject.facts, "peak_bytes": None if before is None or peak is None else peak - before}

    def run(self, name: str, steps: int, seconds: float, clock: str = "wall") -> dict[str, Any]:
        """clock "cpu": processor time of this process, which neighbours hardly change; meant for one thread."""
        subject, now, times = self.subjects[name], machine.CLOCKS[clock], []
        neighbours = machine.Neighbours()
        end = time.perf_counter() + seconds
        while len(times) < steps or time.perf_counter() < end:
            start = now()
            subject.step()
            times.append(now() - start)
        return {"times": times, "others": neighbours.share() if clock == "wall" else None}

    def drop(self, name: str) -> None:
        del self.subjects[name]

    def call(self, function: str, options: dict[str, Any]) -> Any:
        return _find(function)(**options)


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def serve() -> None:
    server, answers = Server(), sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # whatever a library prints must not be taken for an answer
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"value": getattr(server, request.pop("command"))(**request)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve()
