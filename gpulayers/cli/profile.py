"""`gpulayers profile nsys|ncu|events -- train ...`: where the time of a training step goes."""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from gpulayers.cli import train
from gpulayers.cli.arguments import Parser, UsageError, add_options, given, say
from gpulayers.profiling.nsight import Plan, ncu_plan, nsys_plan, run_plan
from gpulayers.profiling.reports import read_report
from gpulayers.profiling.table import table
from gpulayers.training.config import Config
from gpulayers.training.options import option, suggestion

TOOLS = ("nsys", "ncu", "events", "ranges", "read")
NOT_RUN = 3

DESCRIPTION = """\
Profile some steps of a training run, after some to warm up, and print a table: each layer, each kernel.

  nsys      Nsight Systems: when and how long each kernel ran
  ncu       Nsight Compute: what each kernel did, by the GPU's counters
  events    CUDA events, no tool and no permission needed: times, bytes and the share of the bandwidth; on the
            emulated device launches and bytes, on the CPU the times of the ops
  ranges    the run alone, with NVTX ranges for a profiler of your own
  read      no run: the table of a report that nsys or ncu has exported

No run folder is written; --steps, evaluation and samples of the run are left out. Exit status: 0; 1 if the profiler
failed; 2 for a wrong command; 3 if nsys or ncu is not installed: the command lines are printed for a machine that
has it."""


@dataclass(frozen=True)
class ProfileOptions:
    """What to profile, and what to show."""

    warm_up: int = option(3, "steps before the ones that count", at_least=0)
    steps: int | None = option(None, "steps that count", at_least=1, default_text="3; ncu: 1")
    out: str | None = option(
        None, "nsys, ncu: the report's name without its ending", metavar="FILE", default_text="profile-<tool>"
    )
    kernels: str | None = option(
        None, "ncu: only kernels whose names match", metavar="REGEX", default_text="all in the step"
    )
    launch_skip: int = option(0, "ncu: launches to pass over", at_least=0)
    launch_count: int = option(100, "ncu: launches to measure, at most", at_least=1)
    top: int = option(0, "rows of the table, the longest first; 0: all", at_least=0)
    each: bool = option(False, "a row for each block rather than one for all (blocks.*)")


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "profile",
        usage="gpulayers profile [nsys|ncu|events|ranges] [options] -- train [options of train]\n"
        "       gpulayers profile read REPORT",
        help="where the time of a training step goes",
        description=DESCRIPTION,
    )
    parser.add_argument("tool", nargs="?", default="nsys", help=f"{', '.join(TOOLS)} (default: nsys)")
    parser.add_argument("report", nargs="?", metavar="REPORT", help="read: SQLite of nsys export, or CSV of ncu")
    add_options(parser, ProfileOptions(), "profile")
    return parser


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """(own words, those behind "--", which are the run's)."""
    at = words.index("--") if "--" in words[1:] and words[0] == "profile" else len(words)
    return words[:at], words[at + 1 :]


def run(namespace: argparse.Namespace) -> int:
    options = ProfileOptions(**given(namespace, "profile", ProfileOptions()))
    tool, report, behind = namespace.tool, namespace.report, namespace.behind
    if tool not in TOOLS:
        raise UsageError(f"unknown tool {tool!r}{suggestion(tool, TOOLS) or '; choose from ' + ', '.join(TOOLS)}")
    if (tool == "read") != (report is not None):
        raise UsageError("gpulayers profile read takes one REPORT" if tool == "read" else f"unknown argument {report}")
    if tool == "read":
        print(table(read_report(report), options.each, options.top))
        return 0
    config = config_of(behind)
    steps = options.steps or (1 if tool == "ncu" else 3)
    if tool in ("events", "ranges"):
        return run_here(tool, config, options, steps)
    if config.training.backend != "cupy":
        raise UsageError(f"{tool} looks at a GPU: add --backend cupy to the run, or use gpulayers profile events")
    words = [sys.executable, "-m", "gpulayers.cli", "profile", "ranges"]
    words += ["--warm-up", str(options.warm_up), "--steps", str(steps), "--", *behind]
    out = (options.out or f"profile-{tool}").removesuffix(f".{tool}-rep")
    if tool == "nsys":
        return profile(nsys_plan(out, words), options)
    return profile(ncu_plan(out, words, options.kernels, options.launch_skip, options.launch_count), options)


def config_of(behind: list[str]) -> Config:
    """The run's settings. Raises UsageError or ConfigError for a command that cannot be profiled."""
    from gpulayers.cli import parse

    if behind[:1] != ["train"]:
        raise UsageError("say what to profile behind two dashes: gpulayers profile events -- train --layers 2")
    namespace = parse(behind)
    for name in ("resume", "out", "trace"):
        if getattr(namespace, name) is not None:
            raise UsageError(f"--{name} cannot be profiled: the profiled run is a new one and writes no folder")
    if namespace.data_parallel:
        raise UsageError("--data-parallel cannot be profiled so: gpulayers train --trace shows a run on several ranks")
    return train.config_from(namespace).complete()


def run_here(tool: str, config: Config, options: ProfileOptions, steps: int) -> int:
    """Train in this process: events gives the table, ranges nothing but the ranges."""
    from gpulayers.profiling.events import Events
    from gpulayers.profiling.nvtx_ranges import NVTX
    from gpulayers.profiling.training import Steps

    recorder = NVTX() if tool == "ranges" else None
    run = Steps(config)
    if recorder is not None:
        run.run(recorder, options.warm_up, steps)
        return 0
    events = Events(run.like)
    run.run(events, options.warm_up, steps)
    print(table(events.profile(), options.each, options.top))
    return 0


def profile(plan: Plan, options: ProfileOptions) -> int:
    """Run the profiler and print its table; print the command lines where it is not installed."""
    if not run_plan(plan):
        print("\n".join(plan.lines))
        say(f"{plan.collect[0]} is not installed here: these lines do it on a machine that has it")
        return NOT_RUN
    print(table(read_report(plan.table), options.each, options.top))
    say(f"reports: {plan.report}, {plan.table}")
    return 0
