"""The end of a rank that fails alone is the end of all: if it only went, the others would wait for it for ever.

    leave(status)                        the last line of a command: abort, unless all ranks leave now (`together.py`)
    abort_on_exceptions(communicator)    what nobody has caught aborts, too

A rank that is killed can say nothing; mpiexec sees that it is gone and ends the others.
"""

import contextlib
import sys
from types import TracebackType

from gpulayers.parallel.communicator import Communicator
from gpulayers.parallel.mpi import connect


def leave(status: int) -> None:
    """The end of a command. Ends all ranks where this one fails and the others do not know."""
    if not connect.cache_info().currsize:
        return
    communicator = connect()
    if status and communicator.size > 1 and not communicator.leaving:
        _abort(communicator, status)


def abort_on_exceptions(communicator: Communicator) -> None:
    """From now on an exception that nobody catches is shown, and ends all ranks with status 1."""
    shown = sys.excepthook

    def show_and_abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        _abort(communicator, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = show_and_abort


def _abort(communicator: Communicator, status: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        print(f"rank {communicator.rank} ends all {communicator.size} ranks", file=sys.stderr, flush=True)
    communicator.abort(status)
