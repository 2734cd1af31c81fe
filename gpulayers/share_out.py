"""Work that the calling thread shares with others: the optimizer's update, the sums of replicas' gradients."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def share_out(work: Callable[[T], Any], todo: Iterable[T], pool: ThreadPoolExecutor | None, helpers: int) -> None:
    """work(x) for each x of `todo`, in any order, by the calling thread and `helpers` of the pool.

    Whoever is ready takes the next. The calling thread works too: if it only waited, it would have woken two others
    while it held a core itself, and the system puts both on the one that is left; two threads then took as long as one.
    What has begun is through when this returns or raises; after an error of the calling thread nothing else is begun.
    Helpers run in a copy of the context each, where NumPy keeps how an overflow is answered.
    """
    waiting = deque(todo)

    def run() -> None:
        while True:
            try:
                x = waiting.popleft()
            except IndexError:  # no more, or another thread was faster
                return
            work(x)

    others = [] if pool is None else [pool.submit(copy_context().run, run) for _ in range(helpers)]
    try:
        run()
    except BaseException:
        waiting.clear()
        raise
    finally:
        wait(others)
    for other in others:
        other.result()
