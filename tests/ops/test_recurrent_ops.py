"""rnn_cell, gru_cell, lstm_cell and swap_time; tests/kernels/test_rnn_cell_kernel.py has their kernels."""

import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.rnn_cell import checked_lengths, logistic_inplace, rnn_cell, rnn_cell_backward
from gpulayers.ops.swap_time import swap_time

SHAPES = [(1, 1), (3, 1), (5, 7), (3, 130), (0, 3)]
LENGTHS = {"no lengths": None, "lengths": [2, 0, 1], "all idle": [0]}


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def made(lengths, B):
    return None if LENGTHS[lengths] is None else np.resize(np.array(LENGTHS[lengths], np.int32), B)


def parts(rng, B, H, count):
    """Every choice of gradients that are there or not."""
    for k in range(1 << count):
        yield [draw(rng, B, H) if k >> i & 1 else None for i in range(count)]


def equal(found, expected):
    return all(a is b or np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


in_shapes = pytest.mark.parametrize("shape", SHAPES)
with_lengths = pytest.mark.parametrize("lengths", LENGTHS)


@in_shapes
@with_lengths
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn_cell(shape, lengths, nonlinearity, rng):
    gi, gh, h = draw(rng, 3, *shape)
    lengths = made(lengths, shape[0])
    check_op(rnn_cell, gi, gh, h, nonlinearity, lengths, 1)
    y = rnn_cell(gi, gh, h, nonlinearity)
    for given in parts(rng, *shape, 3):
        check_op(rnn_cell_backward, *given, y, nonlinearity, lengths, 1)


@in_shapes
@with_lengths
def test_gru_cell(shape, lengths, rng):
    (B, H), lengths = shape, made(lengths, shape[0])
    args = (draw(rng, B, 3 * H), draw(rng, B, 3 * H), draw(rng, H), draw(rng, B, H))
    check_op(gru_cell, *args, lengths, 1)
    check_op(gru_cell, *args[:2], None, args[3], lengths, 1)
    _, gates, hn = gru_cell(*args)
    for given in parts(rng, B, H, 3):
        check_op(gru_cell_backward, *given, gates, hn, args[3], lengths, 1)
        expected, memory = gru_cell_backward(*given, gates, hn, args[3], lengths, 1), gates.copy()
        out = (memory, np.empty_like(gates), np.empty_like(hn))
        assert equal(gru_cell_backward(*given, memory, hn, args[3], lengths, 1, out=out), expected)


@in_shapes
@with_lengths
def test_lstm_cell(shape, lengths, rng):
    (B, H), lengths = shape, made(lengths, shape[0])
    args = (draw(rng, B, 4 * H), draw(rng, B, 4 * H), draw(rng, B, H), draw(rng, B, H))
    check_op(lstm_cell, *args, lengths, 1)
    _, c_new, gates = lstm_cell(*args)
    for given in parts(rng, B, H, 4):
        check_op(lstm_cell_backward, *given, gates, args[3], c_new, lengths, 1)
        expected, memory = lstm_cell_backward(*given, gates, args[3], c_new, lengths, 1), gates.copy()
        dc = np.empty_like(c_new) if given[3] is None else given[3].copy()
        given[3] = None if given[3] is None else dc
        out = (memory, dc, None if lengths is None else np.empty_like(c_new))
        assert equal(lstm_cell_backward(*given, memory, args[3], c_new, lengths, 1, out=out), expected)


@in_shapes
@with_lengths
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_in_the_memory_of_the_sums(shape, lengths, dtype, rng):
    """As the layers call them, with strided views of wider buffers besides."""
    (B, H), lengths = shape, made(lengths, shape[0])
    h, c = (draw(rng, B, 2 * H)[:, H:].astype(dtype) for _ in range(2))
    for op, k, states in ((gru_cell, 3, (None, h)), (lstm_cell, 4, (h, c))):
        gi, gh = (draw(rng, B, k * H + 1)[:, 1:].astype(dtype) for _ in range(2))
        expected = op(gi, gh, *states, lengths, 1)
        out = [np.empty_like(a) for a in expected]
        out[1 if op is gru_cell else 2] = gi
        assert equal(op(gi, gh, *states, lengths, 1, out=tuple(out)), expected)
        assert all(a is b for a, b in zip(op(gi, gh, *states, lengths, 1, out=tuple(out)), out, strict=True))


@pytest.mark.parametrize("columns", range(1, 7))
def test_logistic_inplace_in_columns(columns, rng):
    """One column of several: in four, its numbers are 16 bytes apart, and np.negative would give wrong ones."""
    x = draw(rng, 9, columns)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    for k in range(columns):
        logistic_inplace(x[:, k:])
        assert np.allclose(x[:, k], expected[:, k], rtol=1e-6)
        x[:, k + 1 :] = np.log(expected / (1 - expected))[:, k + 1 :]


@pytest.mark.parametrize("value", [-1000, -87, -20, 0, 20, 1000])
def test_logistic_inplace_keeps_digits(value):
    x = np.full((1, 3), value, np.float32)
    logistic_inplace(x)
    assert np.allclose(x, 1 / (1 + np.exp(-np.float64(value))) if value > -100 else 0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 3, 1023), (0, 3, 4), (3, 0, 4)])
def test_swap_time(shape, rng):
    x, lengths = draw(rng, *shape), rng.integers(0, shape[1] + 1, shape[0]).astype(np.int32)
    for given in (None, lengths, np.zeros_like(lengths)):
        check_op(swap_time, x, given)
        check_op(swap_time, draw(rng, *shape[1::-1], shape[2]), given, False)
    y = swap_time(x, lengths)
    assert y.flags.c_contiguous
    assert not np.shares_memory(x, y)
    for b, length in enumerate(lengths):
        assert np.array_equal(y[:length, b], x[b, :length])
        assert not y[length:, b].any()
    assert np.array_equal(swap_time(y, None, False), swap_time(swap_time(x), lengths, False))


def test_lengths_are_checked():
    x = np.zeros((2, 3, 1), np.float32)
    assert checked_lengths(None, 3, 2, x, "Who") is None
    assert checked_lengths([3, 0], 3, 2, x, "Who").dtype == np.int32
    assert checked_lengths([], 3, 0, x[:0], "Who").shape == (0,)
    with pytest.raises(ValueError, match=r"Who: the length of sequence 1 is 4, outside 0\.\.3"):
        checked_lengths([3, 4], 3, 2, x, "Who")
    with pytest.raises(TypeError, match="Who takes integer lengths, got bool"):
        checked_lengths(np.ones(2, bool), 3, 2, x, "Who")


def test_another_nonlinearity_is_refused(rng):
    h = draw(rng, 2, 3)
    for call in (lambda: rnn_cell(h, h, h, "sine"), lambda: rnn_cell_backward(h, None, None, h, "sine")):
        with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'sine'"):
            call()
