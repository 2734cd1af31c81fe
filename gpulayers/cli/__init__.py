"""The `gpulayers` command: train, generate, evaluate, export, profile, verify, doctor, lab, walk, report.

    gpulayers train [TASK] [options]       gpulayers generate RUN [options]        gpulayers evaluate RUN [options]
    gpulayers export RUN FOLDER            gpulayers profile nsys|ncu|events -- train [options]
    gpulayers verify [OP...] [options]     gpulayers doctor [--json]              gpulayers lab [options]
    gpulayers walk [MODEL] [options]              gpulayers report RUN [RUN...] [options]

Exit status: 0; 2 with one line on stderr for whatever the user can put right; 1 where training or a profiler cannot go
on, verify found a fault, or doctor something to mend; 3 where the profiler is not installed; 130 and 143 after Ctrl-C
and SIGTERM.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import gpulayers
from gpulayers.cli import doctor, evaluate, export, generate, lab, profile, report, train, verify, walk
from gpulayers.cli.arguments import Parser, UsageError
from gpulayers.cuda import GPUUnavailable
from gpulayers.data import DataError
from gpulayers.emulator.errors import ToolkitMissing
from gpulayers.parallel import ALONE, Elsewhere, ParallelError, connect, leave, together
from gpulayers.profiling.nsight import ProfilerFailed
from gpulayers.profiling.nvtx_ranges import NVTXMissing
from gpulayers.storage import FileError
from gpulayers.training.loop import TrainingError
from gpulayers.training.options import ConfigError, suggestion

COMMANDS = {
    "train": train,
    "generate": generate,
    "evaluate": evaluate,
    "export": export,
    "profile": profile,
    "verify": verify,
    "doctor": doctor,
    "lab": lab,
    "walk": walk,
    "report": report,
}
EXPECTED = (
    UsageError,
    ConfigError,
    DataError,
    FileError,
    GPUUnavailable,
    ToolkitMissing,
    FloatingPointError,
    NVTXMissing,
    ParallelError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    status = _main(arguments)
    leave(status)
    return status


def _main(arguments: Sequence[str] | None) -> int:
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write characters that the terminal has not
    try:
        with terminated_as_exception():
            status = command(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return status
    except EXPECTED as error:
        return complain(error, 2)
    except (TrainingError, ProfilerFailed) as error:
        return complain(error, 1)
    except Elsewhere as elsewhere:
        return elsewhere.status
    except MemoryError as error:
        return complain(
            f"not enough memory ({error}): a smaller model, a smaller --batch or more --accumulate needs less", 2
        )
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        silence()
        return 141
    except OSError as error:  # a folder that may not be entered, a name that is too long: no reader foresees all
        if error.filename is None:  # a full disk under a log file
            silence()
        return complain(f"{error.strerror or error}: {error.filename or 'the output'}", 2)


def complain(error: object, status: int) -> int:
    with contextlib.suppress(OSError):  # where nobody listens, the status has to do
        words = " ".join([str(error), *getattr(error, "__notes__", ())]).split()
        print("gpulayers: error:", *words, file=sys.stderr, flush=True)
    return status


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT: what is half written is cleared away on the way out."""


@contextlib.contextmanager
def terminated_as_exception() -> Iterator[None]:
    """Inside, SIGTERM raises Terminated, unless it is ignored or handled already, or this is not the main thread."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def open_closed_streams() -> None:
    """Point stdin, stdout and stderr that are closed (`2>&-`) to nothing.

    Otherwise the next file that is opened, a checkpoint say, would get their number and what is printed there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 it stands in for a stream, until the process ends


def silence() -> None:
    """What is still in the buffer of stdout goes to nothing, so that Python does not fail to write it as it leaves."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command(words: list[str]) -> int:
    """Parse and run. Raises one of EXPECTED."""
    with together(connect() if words[:1] == ["train"] and "--data-parallel" in words else ALONE):
        namespace = parse(words)
    return COMMANDS[namespace.command].run(namespace) if namespace.command else 0


def parse(words: list[str]) -> argparse.Namespace:
    """What the words say; without a command the help is printed. Raises UsageError."""
    words, behind = profile.split(words)
    parser = Parser(prog="gpulayers", description="Deep learning by hand, on NumPy or CuPy.")
    parser.add_argument("--version", action="version", version=f"gpulayers {gpulayers.__version__}")
    chosen = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    parsers = {name: module.add_parser(chosen, words[1:]) for name, module in COMMANDS.items()}
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UsageError(f"unknown command {words[0]!r}{suggestion(words[0], COMMANDS)}")
    namespace, unknown = parser.parse_known_args(words)
    if namespace.command is None:
        if unknown:
            raise UsageError(f"unknown option {unknown[0]}")
        parser.print_help()
    if unknown:
        if words[0] == "train" and not words[1].startswith("-"):
            train.task_of(namespace)  # a wrong task explains an unknown option
        word = unknown[0].partition("=")[0]
        what = "option" if word.startswith("-") else "argument"
        raise UsageError(f"unknown {what} {word}{suggestion(word, parsers[str(namespace.command)].flags())}")
    namespace.behind = behind
    return namespace
