"""The command lines of Nsight Systems and Nsight Compute for a training run, and running them.

Both start `gpulayers profile ranges`, which trains with NVTX ranges after some steps without (see training.py).
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulayers.profiling.ncu_report import PERCENT, READ, WRITTEN
from gpulayers.profiling.nvtx_ranges import DOMAIN
from gpulayers.storage import write_atomically

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats")
METRICS = ("gpu__time_duration.sum", READ, WRITTEN, PERCENT)
NO_COUNTERS = "ERR_NVGPUCTRPERM"
COUNTERS_REFUSED = (
    f"the driver lets only administrators read the GPU's counters ({NO_COUNTERS}): `gpulayers profile nsys` and "
    "`gpulayers profile events` need none, and the latter tells the share of the bandwidth from event times alone; to "
    "permit them, run ncu as root or in a container with --cap-add=SYS_ADMIN, or put the line "
    "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` into /etc/modprobe.d/nvidia-profiler.conf, rebuild the "
    "initramfs and restart the machine"
)


class ProfilerFailed(RuntimeError):
    """nsys or ncu ended with an error; the message is one sentence."""


@dataclass(frozen=True)
class Plan:
    """collect: the profiler around the run. export: turns its `report` into `table`, by its output if `prints`."""

    collect: list[str]
    export: list[str]
    report: Path
    table: Path
    prints: bool

    @property
    def lines(self) -> list[str]:
        """For a shell."""
        export = shlex.join(self.export) + (f" > {shlex.quote(str(self.table))}" if self.prints else "")
        collect = ["python" if word == sys.executable else word for word in self.collect]
        return [shlex.join(collect), export, shlex.join(["gpulayers", "profile", "read", str(self.table)])]


def nsys_plan(out: str, run: Sequence[str]) -> Plan:
    """The timeline of the range `profile`: kernels, API calls, ranges."""
    report, table = Path(f"{out}.nsys-rep"), Path(f"{out}.sqlite")
    traces = "cuda,nvtx,osrt" if sys.platform == "linux" else "cuda,nvtx"
    collect = [
        "nsys",
        "profile",
        f"--trace={traces}",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=nvtx",
        f"--nvtx-capture=profile@{DOMAIN}",
        "--capture-range-end=stop",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--force-overwrite=true",
        f"--output={report}",
        *run,
    ]
    export = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={table}", str(report)]
    return Plan(collect, export, report, table, prints=False)


def ncu_plan(out: str, run: Sequence[str], kernels: str | None = None, skip: int = 0, count: int = 100) -> Plan:
    """The counters of the launches inside the range `step`: `count` of them, after `skip`.

    kernels: a regular expression that names must match. Each launch is repeated a few dozen times, at the clock that
    the card chooses, since a fixed one would be another card's speed.
    """
    report, table = Path(f"{out}.ncu-rep"), Path(f"{out}.csv")
    collect = [
        "ncu",
        "--nvtx",
        "--nvtx-include",
        f"{DOMAIN}@step/",  # the slash: a pushed range, not a started one
        "--clock-control",
        "none",
        *(["-k", f"regex:{kernels}"] if kernels else []),
        "--launch-skip",
        str(skip),
        "--launch-count",
        str(count),
        *(word for section in SECTIONS for word in ("--section", section)),
        "--metrics",
        ",".join(METRICS),
        "--force-overwrite",
        "--export",
        str(report),
        *run,
    ]
    return Plan(collect, ["ncu", "--import", str(report), "--csv", "--page", "raw"], report, table, prints=True)


def run_plan(plan: Plan) -> bool:
    """Collect and export; False, and nothing done, where the tool is not installed.

    Raises ProfilerFailed; FileError where the table cannot be written.
    """
    if shutil.which(plan.collect[0]) is None:
        return False
    if NO_COUNTERS in _echo(plan.collect):
        raise ProfilerFailed(COUNTERS_REFUSED)
    if not plan.report.exists():
        raise ProfilerFailed(f"{plan.collect[0]} wrote no {plan.report}: did the run reach the steps to profile?")
    done = subprocess.run(plan.export, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ProfilerFailed(f"{shlex.join(plan.export)} failed with exit status {done.returncode}")
    if plan.prints:
        write_atomically(plan.table, done.stdout)
    return True


def _echo(command: list[str]) -> str:
    """Run it and pass its output on while it comes. Raises ProfilerFailed if it fails for want of anything else."""
    seen = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as job:
        for line in job.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            seen.append(line)
    text = "".join(seen)
    if job.returncode and NO_COUNTERS not in text:
        raise ProfilerFailed(f"{command[0]} failed with exit status {job.returncode}")
    return text
