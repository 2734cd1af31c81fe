"""How ranks come to a common end, each of them knowing that all do."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpulayers.parallel.communicator import Communicator, Elsewhere


@contextmanager
def together(communicator: Communicator, first_alone: bool = False) -> Iterator[None]:
    """If the block raises an Exception on any rank, all leave it by one.

    The first rank that has one raises it, with a note that says which rank it is where not all have the same; the
    others raise `Elsewhere`. first_alone: only the first rank does anything in the block, so nobody need be told which.
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
    if not first_alone and any(text != said[first] for text in said):
        error.add_note(f"(on rank {first} of {communicator.size})")
    raise error


def end_together(communicator: Communicator) -> None:
    """Wait for all ranks, for whom this is the end, too."""
    communicator.barrier()
    communicator.leaving = True
