"""share_out: who works, who waits, and what an error leaves undone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpulayers.share_out import share_out


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


def test_the_calling_thread_works_beside_the_others(pool):
    """Three pieces that wait for each other are three threads'."""
    seen, barrier = [], threading.Barrier(3)

    def work(x):
        barrier.wait(10)
        np.exp(np.full(1, 1000, np.float32))  # an overflow is answered as the caller says
        seen.append((x, threading.get_ident()))

    with np.errstate(over="ignore"):
        share_out(work, "abc", pool, 2)
    assert sorted(x for x, _ in seen) == ["a", "b", "c"]
    threads = {thread for _, thread in seen}
    assert len(threads) == 3
    assert threading.get_ident() in threads


@pytest.mark.parametrize("bad", range(3))
def test_an_error_of_any_thread_is_raised(bad, pool):
    barrier = threading.Barrier(3)

    def fail(x):
        barrier.wait(10)
        if x == bad:
            raise IndexError("of the work")  # not that of an empty queue

    with pytest.raises(IndexError, match="of the work"):
        share_out(fail, range(3), pool, 2)


def test_what_has_begun_is_through_and_nothing_else_is_begun(pool):
    begun, ended = threading.Event(), []

    def slow(x):
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
            raise ZeroDivisionError
        begun.set()
        time.sleep(0.05)
        ended.append(x)

    with pytest.raises(ZeroDivisionError):
        share_out(slow, range(30), pool, 2)
    assert 1 <= len(ended) <= 3


@pytest.mark.parametrize("helpers", [0, -1])
def test_alone_and_with_nothing_to_do(helpers, pool):
    seen = []
    share_out(seen.append, range(4), None if helpers else pool, helpers)
    assert seen == [0, 1, 2, 3]
    share_out(seen.append, [], pool, 2)
    assert seen == [0, 1, 2, 3]
