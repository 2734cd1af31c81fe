"""Runs the faults: a worker process for each, some at a time, results kept by the content of what goes into them."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .source import Fault, Source

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".mutation_cache"
VERSION = "1"  # of what a result means: raise it when the worker changes
SHARED = ("conftest.py", "contract.py", "devices.py", "tolerances.py", "updates.py")  # of tests/: what kernel tests use
Result = dict[str, Any]


class Outcome(NamedTuple):
    """outcome: killed, survived, same (program) or refused (by the compiler); how: value, check or limit."""

    fault: Fault
    outcome: str
    how: str = ""
    test: str = ""
    error: str = ""


class Campaign:
    """A snapshot of the project in `scratch`, so that edits during a long run do not matter, and the results."""

    def __init__(self, scratch: Path, jobs: int, fresh: bool = False) -> None:
        self.scratch, self.jobs, self.lock, self.number = scratch, jobs, threading.Lock(), 0
        for part in ("gpulayers", "kernels", "tests"):
            shutil.copytree(ROOT / part, scratch / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", scratch)
        self.sources = {path.name: Source(path.name, path.read_text("utf-8")) for path in files(scratch / "kernels")}
        self.kernels = [name[:-3] for name in self.sources if name.endswith(".cu") and self.tests(name[:-3]).is_file()]
        self.normal: dict[str, Result] = {}  # kernel -> how its tests run without a fault
        self.store = CACHE / "results.json"
        self.results: dict[str, Result] = {}
        if self.store.is_file() and not fresh:
            self.results = json.loads(self.store.read_text("utf-8"))

    def tests(self, kernel: str) -> Path:
        return self.scratch / "tests" / "kernels" / f"test_{kernel}_kernel.py"

    def closure(self, name: str) -> list[str]:
        """A source and all that it includes."""
        found = [name]
        for one in found:
            included = re.findall(r'#include "([^"]+)"', self.sources[one].text)
            found += [other for other in included if other not in found]
        return sorted(found)

    def ops(self, kernel: str) -> list[str]:
        """The op of a kernel and those that it imports; they may launch kernels of their own."""
        found = [kernel]
        for one in found:
            path = self.scratch / "gpulayers" / "ops" / f"{one}.py"
            imported = re.findall(r"gpulayers\.ops\.(\w+)", path.read_text("utf-8")) if path.is_file() else []
            found += [other for other in dict.fromkeys(imported) if other not in found]
        return sorted(found)

    def users(self, fault: Fault) -> list[str]:
        """The kernels that a faulty file goes into, those that name the function first, then the quickest."""
        using = [kernel for kernel in self.normal if fault.file in self.closure(f"{kernel}.cu")]

        def cost(kernel: str) -> tuple[bool, float]:
            others = [self.sources[name].text for name in self.closure(f"{kernel}.cu") if name != fault.file]
            named = any(re.search(rf"\b{fault.function}\b", text) for text in others)
            return not named, sum(self.normal[kernel]["seconds"].values())

        return sorted(using, key=cost)

    def run_normal(self, kernels: list[str], say: Callable[[str], None]) -> None:
        """Every kernel's tests without a fault. A kernel whose tests fail is left out."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for kernel, result in zip(kernels, pool.map(self.run_one, kernels), strict=True):
                if result["outcome"] == "survived":
                    self.normal[kernel] = result
                else:
                    say(f"{kernel}: left out, its tests fail without a fault: {result.get('error', '')}")

    def run(self, faults: list[Fault], say: Callable[[str], None]) -> list[Outcome]:
        """The outcome of each fault."""
        outcomes = []
        with ThreadPoolExecutor(self.jobs) as pool:
            for number, outcome in enumerate(pool.map(self.outcome, faults), 1):
                one = outcome.fault
                line = one.line(self.sources[one.file].text)
                say(f"{number}/{len(faults)} {one.file}:{line} {one.kind}: {outcome.outcome} {outcome.how}".rstrip())
                outcomes.append(outcome)
        return outcomes

    def outcome(self, fault: Fault) -> Outcome:
        """The tests of one kernel after the other that the faulty file goes into, until one notices."""
        results = []
        for kernel in self.users(fault):
            result = self.run_one(kernel, fault)
            if result["outcome"] == "killed":
                return Outcome(fault, "killed", result["how"], result["test"], result["error"])
            results.append(result["outcome"])
        every = set(results)
        return Outcome(fault, "survived" if "survived" in every else "refused" if "refused" in every else "same")

    def run_one(self, kernel: str, fault: Fault | None = None) -> Result:
        """One kernel's tests, with a fault or without, from memory if nothing has changed since."""
        texts = {name: source.text for name, source in self.sources.items()}
        if fault:
            texts[fault.file] = fault.apply(texts[fault.file])
        key = self.key(kernel, texts)
        if key not in self.results:
            result = self.work(kernel, texts, self.normal.get(kernel) if fault else None)
            with self.lock:
                self.results[key] = result
                self.save()
        return self.results[key]

    def key(self, kernel: str, texts: dict[str, str]) -> str:
        """Of what a result depends on: the kernel's tests, its ops, their sources, the emulator."""
        package, ops = self.scratch / "gpulayers", self.ops(kernel)
        paths = [self.tests(kernel), package / "cuda.py", package / "verify" / "tolerances.py"]
        paths += [package / "ops" / f"{op}.py" for op in ops]
        shared = list(SHARED)
        for module in re.findall(r"^from (\w+) import", self.tests(kernel).read_text("utf-8"), re.MULTILINE):
            shared += [] if f"{module}.py" in SHARED else [f"{module}.py"]
        paths += [self.scratch / "tests" / name for name in shared]
        paths += sorted((package / "emulator").glob("*.py"))
        included = {name for op in ops if f"{op}.cu" in texts for name in self.closure(f"{op}.cu")}
        parts = [VERSION, kernel, *(f"{name}\0{texts[name]}" for name in sorted(included))]
        parts += [path.read_text("utf-8") for path in paths if path.is_file()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def work(self, kernel: str, texts: dict[str, str], normal: Result | None) -> Result:
        """Start a worker on a folder with these sources, and wait for it as long as is reasonable."""
        with self.lock:
            self.number += 1
            folder = self.scratch / "faults" / str(self.number)
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
        job, result = folder / "job.json", folder / "result.json"
        tests = str(self.tests(kernel))
        job.write_text(json.dumps({"kernels": str(folder), "source": kernel, "tests": tests, "normal": normal}))
        worker = self.scratch / "tests" / "mutation" / "worker.py"
        environment = os.environ | {
            "PYTHONPATH": str(self.scratch),  # before the installed package
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # such as hypothesis, which takes a second
            "OPENBLAS_NUM_THREADS": "1",
        }
        limit = 300 + 10 * normal["wall_seconds"] if normal else 1800
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, str(worker), str(job), str(result)],
                cwd=self.scratch, env=environment, timeout=limit, capture_output=True, text=True,
            )  # fmt: skip
            if not result.is_file():
                last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
                found = {"outcome": "killed", "how": "value", "test": "", "error": f"the process ended: {last}"}
            else:
                found = json.loads(result.read_text())
        except subprocess.TimeoutExpired:
            found = {"outcome": "killed", "how": "limit", "test": "", "error": f"not done in {limit:.0f} s"}
        shutil.rmtree(folder)
        return found | {"wall_seconds": round(time.perf_counter() - start, 2)}

    def save(self) -> None:
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n")
        draft = self.store.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(self.results), "utf-8")
        draft.replace(self.store)


def files(folder: Path) -> list[Path]:
    """The CUDA sources."""
    return sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])
