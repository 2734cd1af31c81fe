"""Tables that are made once and kept: for each device its own, and complete before another stream can read them."""

import numpy as np
import pytest

import gpulayers as gl
from gpulayers import cuda
from gpulayers.emulator.streams import Stream
from gpulayers.layers import positions
from gpulayers.ops import rotary


def sinusoids(like):
    return gl.SinusoidalPositions(4)(like.reshape(1, 2, 4))


def tables(like):
    return rotary.rotary_tables(2, 4, 10000.0, like)


def flag(like):
    return cuda.error_flag(like)


@pytest.mark.parametrize("make", [sinusoids, tables, flag])
def test_the_first_use_waits_and_later_ones_do_not(make, monkeypatch):
    for cached in (positions._sinusoids, rotary._tables, cuda._error_flag):
        cached.cache_clear()
    waits = []
    monkeypatch.setattr(Stream, "synchronize", lambda self: waits.append(self))
    x = gl.to_device(np.ones((2, 4), np.float32), "emulated")
    stream = Stream(non_blocking=True)
    with stream:
        make(x)
    assert waits == [stream]
    make(x)
    assert waits == [stream]


def test_each_device_has_its_own():
    xp = gl.use("emulated")
    first, second = (rotary._tables(4, 4, 10000.0, np.dtype(np.float32), xp, number) for number in (0, 0))
    assert first is second
    assert cuda.place_of(np.ones(1)) == (np, 0)
    assert cuda.place_of(xp.ones(1)) == (xp, 0)
    here = rotary.rotary_tables(2, 4, 10000.0, np.ones(1, np.float32))
    assert all(isinstance(table, np.ndarray) for table in here)


def test_a_table_is_made_on_the_device_that_asks(monkeypatch):
    xp, used = gl.use("emulated"), []
    device = xp.cuda.Device

    def numbered(number):
        used.append(number)
        return device(0)

    monkeypatch.setattr(xp.cuda, "Device", numbered)
    one, three = (rotary._tables(8, 6, 123.0, np.dtype(np.float32), xp, number) for number in (1, 3))
    assert used == [1, 3]
    assert one is not three
