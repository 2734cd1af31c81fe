"""The cells of recurrent networks: rnn_cell, gru_cell and lstm_cell, forward and backward."""

import numpy as np
import pytest
from contract import as_tuple
from devices import check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.cuda import check_errors
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.rnn_cell import checked_lengths, rnn_cell, rnn_cell_backward

SHAPES = [(1, 1), (5, 7), (2, 140), (0, 4), (130, 3)]
LENGTHS = {"no lengths": None, "lengths": [2, 0, 1, 5, 2], "all idle": [0] * 5}

with_lengths = pytest.mark.parametrize("lengths", LENGTHS)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def made(lengths, B):
    lengths = LENGTHS[lengths]
    return None if lengths is None else np.resize(np.array(lengths, np.int32), B)


def forward(rng, B, H):
    """(op, arguments) of each cell."""
    yield rnn_cell, (draw(rng, B, H), draw(rng, B, H), draw(rng, B, H), "tanh")
    yield rnn_cell, (draw(rng, B, H), draw(rng, B, H), draw(rng, B, H), "relu")
    yield gru_cell, (draw(rng, B, 3 * H), draw(rng, B, 3 * H), draw(rng, H), draw(rng, B, H))
    yield gru_cell, (draw(rng, B, 3 * H), draw(rng, B, 3 * H), None, draw(rng, B, H))
    yield lstm_cell, (draw(rng, B, 4 * H), draw(rng, B, 4 * H), draw(rng, B, H), draw(rng, B, H))


def backward(rng, B, H, there=(True, True, True, True)):
    """there: which of dy, direct, product and dc there are."""
    given = [draw(rng, B, H) if one else None for one in there]
    for (op, args), op_backward in zip(
        forward(rng, B, H),
        (rnn_cell_backward, rnn_cell_backward, gru_cell_backward, gru_cell_backward, lstm_cell_backward),
        strict=True,
    ):
        made = op(*args)
        if op is rnn_cell:
            yield op_backward, (*given[:3], made, args[3])
        elif op is gru_cell:
            yield op_backward, (*given[:3], *made[1:], args[3])
        else:
            yield op_backward, (*given, made[2], args[3], made[1])


@on_devices
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", ["no lengths", "lengths"])
def test_against_the_reference(device, shape, lengths, rng):
    for op, args in (*forward(rng, *shape), *backward(rng, *shape)):
        check_kernel(op, device, *args, made(lengths, shape[0]), 1)


@on_devices
@in_storage
@with_lengths
def test_in_each_storage(device, storage, lengths, rng):
    for op, args in (*forward(rng, 5, 33), *backward(rng, 5, 33)):
        check_kernel(op, device, *args, made(lengths, 5), 1, storage=storage)


@on_devices
@pytest.mark.parametrize("there", [0, 1, 2, 4, 8, 6, 9])
def test_parts_of_the_gradient_that_are_not_there(device, there, rng):
    for lengths in ("no lengths", "lengths"):
        for op, args in backward(rng, 5, 3, [bool(there >> k & 1) for k in range(4)]):
            check_kernel(op, device, *args, made(lengths, 5), 1)


@on_devices
@with_lengths
def test_in_the_memory_of_the_gates(device, lengths, rng):
    """As the layers call them: gates in the place of gi, their gradients in the place of the gates, and so on."""

    def there(args):
        return [gl.to_device(a, device) if isinstance(a, np.ndarray) else a for a in args]

    def like(arrays):
        return [None if a is None else a.copy() for a in arrays]

    B, H = 5, 33
    lengths = gl.to_device(made(lengths, B), device) if LENGTHS[lengths] is not None else None
    for op, args in forward(rng, B, H):
        args = there(args)
        expected = op(*args, lengths, 1)
        if op is rnn_cell:
            assert same(op(*args, lengths, 1, out=(expected.copy(),)), expected)
            continue
        out = like(expected)
        out[1 if op is gru_cell else 2] = args[0]
        assert all(same(a, b) for a, b in zip(op(*args, lengths, 1, out=tuple(out)), expected, strict=True))
    for op, args in backward(rng, B, H):
        args = there(args)
        expected = op(*args, lengths, 1)
        out = like(expected)
        if op is gru_cell_backward:
            out[0], out[2] = args[3], args[1]
        elif op is lstm_cell_backward:
            out = [args[4], args[3], None if out[2] is None else args[1]]
        else:
            out[1] = None if out[1] is None else args[1]
        found = op(*args, lengths, 1, out=tuple(out))
        assert all(a is b or same(a, b) for a, b in zip(found, expected, strict=True))


def same(a, b):
    return np.array_equal(a.get(), b.get())


@on_devices
@pytest.mark.parametrize("value", [-100, -88, -20, -5, -1e-3, 1e-3, 5, 20, 100])
def test_each_value_has_its_digits(device, value):
    def full(cols):
        return np.full((1, cols), value, np.float32)

    zero = np.zeros((1, 1), np.float32)
    for nonlinearity in ("tanh", "relu"):
        check_kernel(rnn_cell, device, full(1), zero, zero, nonlinearity)
    check_kernel(gru_cell, device, full(3), np.zeros((1, 3), np.float32), None, zero + 1, factor=2)  # exp is rounded
    check_kernel(lstm_cell, device, full(4), np.zeros((1, 4), np.float32), zero, zero, factor=2)


@on_devices
def test_views(device, rng):
    wide = draw(rng, 5, 40)
    for op, args in (*forward(rng, 5, 4), *backward(rng, 5, 4)):
        args = [wide[:, : 2 * a.shape[1] : 2] if isinstance(a, np.ndarray) and a.ndim == 2 else a for a in args]
        check_kernel(op, device, *args, np.array([1, 2, 0, 3, 4], np.int32), 1)


@on_devices
def test_nan_stays(device):
    nan = np.full((1, 1), np.nan, np.float32)
    for nonlinearity in ("tanh", "relu"):
        assert np.isnan(check_kernel(rnn_cell, device, nan, nan, nan, nonlinearity)[0].get())


@on_devices
def test_padding_hides_nan(device, rng):
    """An idle row's inputs may be anything."""
    nan, lengths = np.full((2, 12), np.nan, np.float32), np.array([0, 0], np.int32)
    state = draw(rng, 2, 3)
    for op, width, more in ((rnn_cell, 3, ()), (gru_cell, 9, (None,)), (lstm_cell, 12, (state,))):
        args = [gl.to_device(a, device) for a in (nan[:, :width], nan[:, :width])]
        args += [None if a is None else gl.to_device(a, device) for a in (*more, state)]
        found = op(*args, lengths=gl.to_device(lengths, device), t=0)
        new = found if op is rnn_cell else found[0]
        assert np.array_equal(new.get(), state)


@on_devices
def test_refusals(device):
    def zeros(*shape, dtype="float32"):
        return gl.to_device(np.zeros(shape, dtype), device)

    h, lengths = zeros(2, 4), zeros(2, dtype="int32")
    with pytest.raises(ValueError, match=r"rnn_cell: gh must have shape \(2, 4\), got \(2, 5\)"):
        rnn_cell(h, zeros(2, 5), h)
    with pytest.raises(ValueError, match=r"gru_cell: gi must have shape \(2, 12\), got \(2, 8\)"):
        gru_cell(zeros(2, 8), zeros(2, 12), None, h)
    with pytest.raises(ValueError, match=r"lstm_cell: lengths must have shape \(2,\), got \(3,\)"):
        lstm_cell(zeros(2, 16), zeros(2, 16), h, h, zeros(3, dtype="int32"))
    with pytest.raises(TypeError, match="lstm_cell: c must be float16, got an array of float32"):
        lstm_cell(*(zeros(2, 16, dtype="float16"),) * 2, h.astype(np.float16), h, lengths)
    with pytest.raises(TypeError, match="lengths must be int32, got an array of int64"):
        rnn_cell(h, h, h, "tanh", zeros(2, dtype="int64"))
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'sine'"):
        rnn_cell(h, h, h, "sine")
    with pytest.raises(ValueError, match="h_new is not contiguous"):
        rnn_cell(h, h, h, out=(zeros(4, 2).T,))


@pytest.mark.parametrize("op", [rnn_cell, gru_cell, lstm_cell])
def test_h11_beyond_32_bits(op, monkeypatch, rng):
    """cupy #7539. Only the last row's first block runs; the memory in front of it is not even touched."""
    gates, H = {rnn_cell: 1, gru_cell: 3, lstm_cell: 4}[op], 1024
    rows = (1 << 31) // (gates * H) + 2

    def large(cols):
        array = gl.use("emulated").zeros((rows, cols), np.float16)
        array[-1] = gl.to_device(draw(rng, cols).astype(np.float16), "emulated")
        return array

    def check(op, *args):
        found, row = op(*args), [None if a is None else a[-1:].get().astype(np.float64) for a in args]
        found, expected = as_tuple(found), as_tuple(op.reference(*row))
        for a, b in zip(found, expected, strict=True):
            assert (a is None and b is None) or np.allclose(a[-1, :128].get(), b[0, :128], rtol=4e-3, atol=2e-3)
        return found

    only_block(monkeypatch, rows - 1)
    sums, h = large(gates * H), large(H)
    if op is rnn_cell:
        (y,) = check(rnn_cell, sums, sums, h)
        check(rnn_cell_backward, h, None, None, y)
    elif op is gru_cell:
        _, kept, hn = check(gru_cell, sums, sums, None, h)
        check(gru_cell_backward, h, None, None, kept, hn, h)
    else:
        _, c, kept = check(lstm_cell, sums, sums, h, h)
        check(lstm_cell_backward, h, None, None, h, kept, h, c)


@on_devices
@pytest.mark.parametrize("size", [1, 128, 300])
def test_lengths_on_the_device_are_checked(device, size):
    lengths = gl.to_device(np.resize(np.array([0, 1, 2, 3]), size), device)
    found = checked_lengths(lengths, 3, size, lengths, "Who")
    check_errors(lengths)
    assert found.dtype == np.int32
    for row, wrong in ((size - 1, 4), (size // 2, -1)):
        bad = lengths.copy()
        bad[row] = wrong
        checked_lengths(bad, 3, size, bad, "Who")
        with pytest.raises(ValueError, match=rf"the length of sequence {row} is {wrong}, outside 0\.\.3"):
            check_errors(bad)
