"""How ranks end: all together, or one that fails takes the others with it. A rank that only went would leave the others
waiting for it for ever.

    with together(communicator): ...     an error on one rank becomes the end of all, said once
    leave(status)                        the last line of a command: abort, unless all ranks leave now
    abort_on_exceptions(communicator)    what nobody has caught aborts, too

A rank that is killed can say nothing; mpiexec sees that it is gone and ends the others.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from gpulayers.parallel.communicator import Communicator, Elsewhere
from gpulayers.parallel.mpi import connect


@contextmanager
def together(communicator: Communicator) -> Iterator[None]:
    """If the block raises an Exception on any rank, all leave it by one.

    The first rank that has one raises it, with a note that says which rank it is where not all have the same; the
    others raise `Elsewhere`.
    """
    if communicator.size == 1:
        yield
        return
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    said = communicator.gather_texts("" if error is None else f"{type(error).__name__}: {error}")
    if not any(said):
        return
    communicator.leaving = True
    first = next(rank for rank, text in enumerate(said) if text)
    if error is None or communicator.rank != first:
        raise Elsewhere(2)
    if any(text != said[first] for text in said):
        error.add_note(f"(on rank {first} of {communicator.size})")
    raise error


def part(communicator: Communicator) -> None:
    """Wait for all ranks, for whom this is the end, too."""
    communicator.barrier()
    communicator.leaving = True


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
