"""`Growing`: a value, whatever is done with older and newer ones, and without copying each time."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulayers as gl
from gpulayers.growing import LEAST, Growing


def rows(count, start=0.0):
    return np.arange(count, dtype=np.float32).reshape(1, 1, count, 1) + np.float32(start) + np.zeros((2, 3, 1, 2), "f")


def test_rows_are_what_was_appended():
    value = Growing(rows(3), axis=2)
    for k in range(40):
        value = value.append(rows(1, 3 + k))
    assert value.length == 43
    assert np.array_equal(value.rows, rows(43))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=30))
def test_every_value_stays_what_it_was(steps):
    """A tree of values, each continued from any earlier one, against arrays that are copied each time."""
    values = [(Growing(rows(2), axis=2), rows(2))]
    for number, (parent, count) in enumerate(steps):
        value, expected = values[parent % len(values)]
        more = rows(count, 100 * (number + 1))
        values.append((value.append(more), np.concatenate([expected, more], axis=2)))
        assert all(np.array_equal(value.rows, expected) for value, expected in values)


def test_appending_copies_in_all_less_than_twice_the_rows():
    value, buffers = Growing(rows(1), axis=2), set()
    for k in range(1000):
        value = value.append(rows(1, k))
        buffers.add(value._buffer.array.shape[2])
    assert buffers == {LEAST << k for k in range(7)}  # 16 .. 1024: a copy for each


def test_the_first_array_is_not_written():
    first = rows(4)
    before = first.copy()
    value = Growing(first, axis=2)
    assert np.shares_memory(value.rows, first)
    value.append(rows(2)).append(rows(1))
    assert np.array_equal(first, before)


def test_take():
    value = Growing(np.stack([rows(3)[0], rows(3, 10)[0]]), axis=2).append(rows(2, 50))
    assert value.take(np.array([0, 1])) is value
    taken = value.take(np.array([1, 1, 0]))
    assert np.array_equal(taken.rows, value.rows[[1, 1, 0]])
    longer = taken.append(np.ones((3, 3, 1, 2), np.float32))
    assert longer._buffer is taken._buffer  # there was room
    assert value.take(np.zeros(0, np.int64)).rows.shape == (0, 3, 5, 2)


def test_two_threads_continue_one_value():
    base, results = Growing(rows(5), axis=2).append(rows(1)), {}

    def work(name):
        value = base
        for _ in range(200):
            value = value.append(rows(1, name))
        results[name] = value.rows[0, 0, 6:, 0]

    threads = [threading.Thread(target=work, args=(name,)) for name in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((found == name).all() for name, found in results.items())


def test_on_the_emulated_device():
    value = Growing(gl.to_device(rows(3), "emulated"), axis=2)
    for k in range(20):
        value = value.append(gl.to_device(rows(1, 3 + k), "emulated"))
    assert gl.device_of(value.rows) == "emulated"
    assert np.array_equal(value.rows.get(), rows(23))
    assert np.array_equal(value.take(np.array([1])).rows.get(), rows(23)[1:])
    with pytest.raises(TypeError, match="meet in one call"):
        value.append(rows(1))


def test_other_rows_are_refused():
    value = Growing(rows(3), axis=2)
    with pytest.raises(ValueError, match=r"float32 rows along axis 2 of \(2, 3, 3, 2\), got float32 \(2, 1, 1, 2\)"):
        value.append(rows(1)[:, :1])
    with pytest.raises(ValueError, match="got float64"):
        value.append(rows(1).astype(np.float64))
