import subprocess
import sys
import threading

import numpy as np
import pytest

from gpulayers import pool
from gpulayers.pool import ALIGNMENT, LEAST, SMALL, pool_bytes, pool_clear, pool_empty

LARGE = (300, 1000)
float32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def _clean():
    pool_clear()
    yield
    pool_clear()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_block_is_used_again():
    first = pool_empty(LARGE, float32)
    where = address(first)
    first.fill(1)
    del first
    assert pool_bytes() >= 1_200_000
    again = pool_empty(LARGE, float32)
    assert address(again) == where
    assert pool_bytes() == 0


def test_a_block_returns_when_the_last_view_dies():
    array = pool_empty(LARGE, float32)
    view = array.reshape(-1)[5:].reshape(5, -1).T[1:]
    view[...] = 7
    del array
    assert pool_bytes() == 0
    assert address(pool_empty(LARGE, float32)) != address(view)
    assert (view == 7).all()
    pool_clear()
    del view
    assert pool_bytes() > 0


def test_living_arrays_share_no_memory():
    arrays = [pool_empty((100 + 10 * (i % 3), 1000), float32) for i in range(20)]
    for i, array in enumerate(arrays):
        array.fill(i)
    assert all((array == i).all() for i, array in enumerate(arrays))


@pytest.mark.parametrize("count", [SMALL // 4, SMALL // 4 + 1, 12_345, 1_000_003])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "uint16"])
def test_alignment_and_bounds(count, dtype):
    array = pool_empty(count, np.dtype(dtype))
    array[...] = 1
    assert (array == 1).all()
    assert array.size == count
    if array.nbytes >= SMALL:
        assert address(array) % ALIGNMENT == 0


def test_nearly_equal_shapes_share_a_block():
    where = address(pool_empty(1_000_000, float32))
    assert address(pool_empty(1_000_100, float32)) == where


def test_arrays_of_ever_new_sizes_do_not_keep_memory_without_end():
    """As a text that grows by a token: one array lives at a time, yet each size kept a block, 11 GB for 225 lengths."""
    largest = 2 * LEAST
    for tenths in range(10, 40):  # nothing is written, so no memory is used
        array = pool_empty(largest * tenths // 40, np.dtype(np.uint8))
        del array
    assert pool_bytes() <= 2 * largest


def test_equal_steps_make_no_new_blocks(monkeypatch):
    def step():
        kept = [pool_empty((n, 1000), float32) for n in (1000, 3000, 4000, 900, 20000)]
        for n in (2500, 7000):
            pool_empty((n, 1000), float32)
        return len(kept)

    step()
    monkeypatch.setattr(pool._Blocks, "lend_new", None)
    assert step() == 5


def test_a_block_that_is_not_much_too_large_will_do():
    where = address(pool_empty(1_000_000, float32))
    assert address(pool_empty(600_000, float32)) == where
    assert address(kept := pool_empty(300_000, float32)) != where
    assert address(pool_empty(1_000_000, float32)) == where  # and it went back among its own
    assert kept.size == 300_000


def test_small_arrays_and_types_without_a_name_are_plain():
    for array in (pool_empty((), float32), pool_empty((0, 1000), float32), pool_empty(100_000, np.dtype(object))):
        assert array.base is None
        del array
    assert pool_bytes() == 0


def test_threads_never_get_the_same_block():
    """Many threads allocate, write, check and drop; a block given out twice would show another thread's number."""
    wrong = []

    def work(number: int) -> None:
        for i in range(200):
            array = pool_empty(20_000 + i % 3, float32)
            array.fill(number)
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_array_that_lives_to_the_end_of_the_interpreter_is_silent():
    code = "from gpulayers.pool import pool_empty; import numpy as np; keep = pool_empty(10**6, np.dtype('f4'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_pool_bytes_while_threads_give_back_new_sizes():
    stop = threading.Event()

    def work():
        size = SMALL
        while not stop.is_set():
            pool_empty(size, np.dtype(np.uint8))  # and given back at once
            size = SMALL if size > 1 << 22 else size + (1 << 14)
            if size == SMALL:
                pool_clear()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert all(pool_bytes() >= 0 for _ in range(3000))  # a dict that grows under an iteration raises
    finally:
        stop.set()
        for thread in threads:
            thread.join()
