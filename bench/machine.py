"""The machine that a number was measured on: what it is, how fast it copies and multiplies, and who else uses it."""

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(threads: int) -> dict[str, Any]:
    """What a reader must know to judge a number. Call it in the process that measures: BLAS chooses there."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas(),
    }


def blas() -> list[dict[str, Any]]:
    """Each BLAS in this process: library, version, the kernel it chose for this CPU, threads."""
    from threadpoolctl import threadpool_info

    found = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [
        {
            "library": pool["internal_api"],
            "version": pool["version"],
            "kernel": pool.get("architecture", ""),
            "threads": pool["num_threads"],
        }
        for pool in found
    ]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


# ----------------------------------------------------------------------------------------------- ceilings


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu: of all threads of the process together


def best_of(function: Any, seconds: float, clock: str) -> float:
    """The shortest time of a call, in seconds: what the machine can do when nobody disturbs it."""
    times: list[float] = []
    now = CLOCKS[clock]
    function()
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = now()
        function()
        times.append(now() - start)
    return min(times)


def copy_bandwidth(nbytes: int, seconds: float = 0.2, clock: str = "wall") -> float:
    """Bytes read plus bytes written in a second, by one thread copying so that `nbytes` are moved in all."""
    source = np.ones(max(1, nbytes // 8), np.float32)
    target = np.empty_like(source)
    return 2 * source.nbytes / best_of(lambda: np.copyto(target, source), seconds, clock)


def read_bandwidth(nbytes: int = 1 << 28, seconds: float = 0.6, clock: str = "wall") -> float:
    """Bytes a second that BLAS's threads read of an array that is in no cache: the sum of its squares."""
    a = np.ones(nbytes // 4, np.float32)
    return a.nbytes / best_of(lambda: np.dot(a, a), seconds, clock)


def blas_flops(size: int = 1024, seconds: float = 0.6, clock: str = "wall") -> float:
    """Float32 operations in a second of a square matrix product, with the threads that BLAS has now."""
    a = np.random.default_rng(0).random((size, size), np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / best_of(lambda: np.matmul(a, a, out=out), seconds, clock)


# ----------------------------------------------------------------------------------------------- memory


def reset_peak_memory() -> None:
    """Let the high-water mark start again from what is resident now. Linux only; elsewhere nothing happens."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory(key: str) -> int | None:
    """Bytes of "VmRSS" (resident now) or "VmHWM" (the most that was), None where /proc has none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


# ----------------------------------------------------------------------------------------------- neighbours


class Neighbours:
    """How much of the machine's processor time others used since `Neighbours()` was made."""

    def __init__(self) -> None:
        self.start, self.busy, self.own = time.perf_counter(), _busy_seconds(), _own_seconds()

    def share(self, own: float | None = None) -> float | None:
        """Processor time of other processes (and of a hypervisor) over that of all cores; None where unknown.

        own: processor seconds that do not count, by default those of this process.
        """
        busy = _busy_seconds()
        if busy is None or self.busy is None:
            return None
        wall = time.perf_counter() - self.start
        others = (busy - self.busy) - (_own_seconds() - self.own if own is None else own)
        return max(0.0, others) / (wall * (os.cpu_count() or 1))


def _busy_seconds() -> float | None:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
