"""One faulty kernel against its tests, in a process of its own: python worker.py JOB RESULT, both JSON.

The kernels come from another folder, by a function put in place of `gpulayers.cuda.kernel_folder`; nothing else knows.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gpulayers as gl
from gpulayers import cuda
from gpulayers.emulator import disk_cache, launch, nvrtc, schedule
from gpulayers.emulator.errors import CompileError, EmulatorError, EndlessLoop

LINES = (".loc", ".file", "//", "$L__info", ".section", ".b8", ".b32", ".b64 $L__info")


class Recorder:
    """A pytest plugin: cheap tests first, and what became of them."""

    def __init__(self, order: dict[str, float]) -> None:
        self.order, self.seconds, self.failure = order, {}, None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.order.get(item.name, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.name] = round(time.process_time() - start, 3)

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any]) -> None:
        error = call.excinfo.value if call.excinfo else None
        if self.failure is None and error is not None:
            self.failure = {"how": how(error), "test": node.name, "error": f"{type(error).__name__}: {error}"[:300]}


def how(error: BaseException) -> str:
    """What noticed: a value that is wrong, a check of the emulator, or its limit of steps."""
    if isinstance(error, EndlessLoop):
        return "limit"
    return "check" if isinstance(error, EmulatorError) else "value"


def programs(source: str) -> Any:
    """(storage, digest of the PTX without files and lines), one storage after the other as they are asked for."""
    texts: list[str] = []
    compile_ptx = nvrtc.compile_ptx

    def listen(*args: Any, **options: Any) -> nvrtc.Compiled:
        compiled = compile_ptx(*args, **options)
        texts.append(compiled.text)
        return compiled

    nvrtc.compile_ptx = listen
    try:
        for storage in cuda.STORAGE.values():
            cuda._module(gl.use("emulated"), source, storage).compile()
            lines = (line.strip() for line in texts[-1].splitlines())
            text = "\n".join(line for line in lines if not line.startswith(LINES))
            yield storage, hashlib.sha256(text.encode()).hexdigest()
    finally:
        nvrtc.compile_ptx = compile_ptx


def count_steps() -> list[int]:
    """A list that gets the steps of each group of blocks."""
    steps, run = [0], schedule.Scheduler.run

    def counted(self: schedule.Scheduler) -> None:
        run(self)
        steps.append(self.steps)

    schedule.Scheduler.run = counted
    return steps


def work(job: dict[str, Any]) -> dict[str, Any]:
    """The outcome: same (the compiler makes the same program), refused (it does not compile), killed, survived."""
    folder = Path(job["kernels"])
    cuda.kernel_folder = lambda: folder
    disk_cache.load, disk_cache.store = lambda key: None, lambda *entry: None
    normal = job.get("normal")
    try:
        if normal is None:
            made = dict(programs(job["source"]))
        elif all(normal["programs"][storage] == program for storage, program in programs(job["source"])):
            return {"outcome": "same"}
    except CompileError as error:
        return {"outcome": "refused", "error": str(error)[:300]}
    recorder = Recorder(normal["seconds"] if normal else {})
    steps = [0] if normal else count_steps()
    if normal:
        launch.limits.max_steps = 4 * normal["steps"] + 1000
    options = ["-o", "addopts=", "--import-mode=importlib", "-m", "not slow and not gpu"]  # and no other processes
    options += ["-q", "-x", "--tb=no", "--no-header", "--assert=plain", "-p", "no:cacheprovider"]
    status = pytest.main([*options, job["tests"]], plugins=[recorder])
    if recorder.failure or status != 0:
        failure = recorder.failure or {"how": "value", "test": "", "error": f"pytest ended with status {status}"}
        return {"outcome": "killed", **failure}
    if normal is None:
        return {"outcome": "survived", "programs": made, "seconds": recorder.seconds, "steps": max(steps)}
    return {"outcome": "survived"}


if __name__ == "__main__":
    result = work(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(result | {"cpu_seconds": round(time.process_time(), 2)}))
