"""RNN, GRU, LSTM and their cells. tests/test_vectors_recurrent.py holds them to PyTorch."""

import itertools

import numpy as np
import pytest
from contract import check_layer
from recurrent import Flat, flat
from tolerances import assert_close

import gpulayers as gl
from gpulayers.step import Train

KINDS = {"RNN": gl.RNN, "GRU": gl.GRU, "LSTM": gl.LSTM}
CELLS = {"RNN": gl.RNNCell, "GRU": gl.GRUCell, "LSTM": gl.LSTMCell}
FORMS = {
    "plain": {},
    "no bias": {"bias": False},
    "both directions": {"bidirectional": True},
    "two layers": {"num_layers": 2},
    "two layers, both directions, dropout": {"num_layers": 2, "bidirectional": True, "dropout": 0.3},
}
LENGTHS = np.array([3, 0, 5, 1])
B, T, INPUT, H = 4, 5, 2, 3

in_kinds = pytest.mark.parametrize("kind", KINDS)


def states(kind, rng, *shape):
    return [rng.normal(size=shape) for _ in range(2 if kind == "LSTM" else 1)]


def count(form):
    return form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)


def pair(kind, arrays):
    return tuple(arrays) if kind == "LSTM" else arrays[0]


# ------------------------------------------------------------------------------------------------- the contract


@in_kinds
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["no lengths", "lengths"])
def test_contract(kind, form, lengths, rng):
    form = FORMS[form]

    def make():
        return Flat(KINDS[kind](INPUT, H, rng=0, **form))

    x, first = rng.normal(size=(B, T, INPUT)), states(kind, rng, count(form), B, H)
    check_layer(make, x, *first, lengths=lengths, train=Train(1, 2))


@in_kinds
def test_without_initial_states(kind, rng):
    check_layer(lambda: Flat(KINDS[kind](INPUT, H, rng=0)), rng.normal(size=(B, T, INPUT)), lengths=LENGTHS)
    layer = KINDS[kind](INPUT, H, rng=0)
    (y, last), saved = layer.forward(rng.normal(size=(B, T, INPUT)).astype(np.float32))
    assert layer.backward((y, last), saved)[1] is None


def test_relu(rng):
    for options in ({}, {"lengths": LENGTHS}):
        make, x = (lambda: Flat(gl.RNN(INPUT, H, nonlinearity="relu", rng=3))), rng.normal(size=(B, T, INPUT))
        check_layer(make, x, rng.normal(size=(1, B, H)), **options)


@in_kinds
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 2), (2, 7, 13), (0, 3, 2), (3, 0, 2)])
def test_shapes_that_hurt(kind, shape, rng):
    first = states(kind, rng, 2, shape[0], 5)
    check_layer(lambda: Flat(KINDS[kind](shape[2], 5, bidirectional=True, rng=0)), rng.normal(size=shape), *first)


@in_kinds
def test_views(kind, rng):
    x, first = rng.normal(size=(INPUT, T, 2 * B)).T[::2], states(kind, rng, H, B, 1)
    check_layer(lambda: Flat(KINDS[kind](INPUT, H, rng=0)), x, *(s.T for s in first), lengths=LENGTHS)


@in_kinds
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_cells(kind, rows, rng):
    check_layer(lambda: Flat(CELLS[kind](INPUT, H, rng=0)), rng.normal(size=(rows, INPUT)), *states(kind, rng, rows, H))
    check_layer(lambda: Flat(CELLS[kind](INPUT, H, bias=False, rng=0)), rng.normal(size=(rows, INPUT)))


@pytest.mark.parametrize(
    ("kind", "missing"),
    [*itertools.product(KINDS, ("dy", "dh_n", "both")), ("LSTM", "dc_n"), ("LSTM", "dh_n alone")],
)
def test_a_gradient_that_is_not_there_is_0(kind, missing, rng):
    layer = KINDS[kind](INPUT, H, 2, bidirectional=True, rng=0, dtype="float64")
    x, first = rng.normal(size=(B, T, INPUT)), pair(kind, states(kind, rng, 4, B, H))
    dy, last = rng.normal(size=(B, T, 2 * H)), states(kind, rng, 4, B, H)
    if missing in ("dy", "both"):
        dy = None
    if missing in ("dh_n", "both"):
        last = None
    elif missing == "dc_n":
        last[1] = None
    elif missing == "dh_n alone":
        last[0] = None
    last = None if last is None else pair(kind, last)
    found = []
    for given in ((dy, last), (zeros_for(dy, (B, T, 2 * H)), zeros_for(last, (4, B, H), kind == "LSTM"))):
        _, saved = layer.forward(x, first, LENGTHS)
        layer.zero_grad()
        found.append([*flat(layer.backward(given, saved)), *(p.grad.copy() for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, "float64")


def zeros_for(array, shape, two=False):
    if two and (array is None or isinstance(array, tuple)):
        return tuple(zeros_for(part, shape) for part in array or (None, None))
    return np.zeros(shape) if array is None else array


# ------------------------------------------------------------------------------------------------- known numbers


def test_worked_numbers():
    """Products W x, as PyTorch has them; ours are x W, so the matrices are transposed."""
    rnn = gl.RNN(2, 2, bias=False)
    rnn.cells[0].weight_ih.assign(np.array([[0.5, 0.1], [0.2, 0.3]]).T)
    rnn.cells[0].weight_hh.assign(np.array([[0.8, 0.2], [0.2, 0.8]]).T)
    y, last = rnn(np.array([[[1, 2], [1.5, 2.5], [2, 3]]], np.float32))
    assert np.abs(y[0] - [[0.6044, 0.6640], [0.9241, 0.9357], [0.9770, 0.9773]]).max() < 5e-5
    assert np.array_equal(last[0], y[:, -1])


def test_h22_both_directions_with_different_lengths():
    """H22: pytorch #1811, #517, #3662; keras #7244; deeplearning4j #1030. Backward began on the padding."""
    rnn = gl.RNN(1, 1, bidirectional=True, dtype="float64")
    for cell in rnn.cells:
        for parameter, value in zip(cell.parameters(), (1.0, 0.5, 0.1, 0.0), strict=True):
            parameter.assign(value)
    x = np.array([[0.1, 0.2, 0.3], [0.4, 0, 0]])[:, :, None]
    (y, last), saved = rnn.forward(x, lengths=[3, 1])
    assert np.abs(last[0, :, 0] - [0.5294731, 0.4621172]).max() < 1e-7
    assert np.abs(last[1, :, 0] - [0.4028933, 0.4621172]).max() < 1e-7
    assert np.abs(y[:, 0, 1] - [0.4028933, 0.4621172]).max() < 1e-7
    assert not y[1, 1:].any()
    dx, _ = rnn.backward((np.ones_like(y), np.ones_like(last)), saved)
    assert not dx[1, 1:].any()
    assert dx[1, 0] != 0


# ------------------------------------------------------------------------------------------------- lengths


@in_kinds
def test_a_batch_with_padding_is_each_sequence_alone(kind, rng):
    layer = KINDS[kind](INPUT, H, 2, bidirectional=True, rng=0, dtype="float64")
    x, first = rng.normal(size=(B, T, INPUT)), states(kind, rng, 4, B, H)
    (y, last), saved = layer.forward(x, pair(kind, first), LENGTHS)
    dy, dlast = rng.normal(size=y.shape), states(kind, rng, 4, B, H)
    layer.zero_grad()
    dx, dfirst = layer.backward((dy, pair(kind, dlast)), saved)
    total = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    for b, length in enumerate(LENGTHS):
        rows = slice(b, b + 1)
        alone, its = layer.forward(x[rows, :length], pair(kind, [s[:, rows] for s in first]))
        assert_close(y[rows, :length], alone[0], "float64")
        assert not y[rows, length:].any()
        for all_of, one in zip(flat(last), flat(alone[1]), strict=True):
            assert_close(all_of[:, rows], one, "float64")
        dx_alone, d = layer.backward((dy[rows, :length], pair(kind, [s[:, rows] for s in dlast])), its)
        assert_close(dx[rows, :length], dx_alone, "float64")
        assert not dx[rows, length:].any()
        for all_of, one in zip(flat(dfirst), flat(d), strict=True):
            assert_close(all_of[:, rows], one, "float64")
    for a, b in zip(total, (p.grad for p in layer.parameters()), strict=True):
        assert_close(a, b, "float64", factor=10)  # summed in another order


@in_kinds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padding_may_hold_anything(kind, dtype, rng):
    layer = KINDS[kind](INPUT, H, bidirectional=True, rng=0, dtype=dtype)
    x, results = rng.normal(size=(B, T, INPUT)).astype(dtype), []
    for filler in (0, np.nan, np.inf):
        x[np.arange(T) >= LENGTHS[:, None]] = filler
        (y, last), saved = layer.forward(x, lengths=LENGTHS)
        dy = np.where((np.arange(T) >= LENGTHS[:, None])[:, :, None], filler, np.ones_like(y)).astype(dtype)
        layer.zero_grad()
        dx, _ = layer.backward((dy, None), saved)
        results.append([y, dx, *flat(last), *(p.grad.copy() for p in layer.parameters())])
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


@in_kinds
def test_length_0_keeps_the_initial_state(kind, rng):
    layer = KINDS[kind](INPUT, H, bidirectional=True, rng=0)
    x, first = rng.normal(size=(2, T, INPUT)).astype(np.float32), states(kind, rng, 2, 2, H)
    first = pair(kind, [s.astype(np.float32) for s in first])
    (y, last), saved = layer.forward(x, first, lengths=[0, 0])
    assert not y.any()
    assert all(np.array_equal(a, b) for a, b in zip(flat(first), flat(last), strict=True))
    dx, dfirst = layer.backward((y + 1, last), saved)
    assert not dx.any()
    assert all(np.array_equal(a, b) for a, b in zip(flat(dfirst), flat(last), strict=True))
    assert not any(p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("lengths", [[2, 0, 3], (2, 0, 3), np.array([2, 0, 3], np.uint8)])
def test_lengths_may_be_a_list(lengths, rng):
    gru, x = gl.GRU(INPUT, H, rng=0), rng.normal(size=(3, 3, INPUT)).astype(np.float32)
    assert np.array_equal(gru(x, lengths=lengths)[0], gru(x, lengths=np.array([2, 0, 3]))[0])


# ------------------------------------------------------------------------------------------------- over time


@in_kinds
def test_carried_state_gives_the_whole_sequence_and_its_gradients(kind, rng):
    """With the gradient handed back from piece to piece, three pieces are one sequence."""
    layer = KINDS[kind](INPUT, H, 2, rng=0, dtype="float64")
    x, dy = rng.normal(size=(B, 6, INPUT)), rng.normal(size=(B, 6, H))
    (y, last), saved = layer.forward(x)
    layer.zero_grad()
    dx, _ = layer.backward((dy, None), saved)
    whole = [p.grad.copy() for p in layer.parameters()]
    state, kept = None, []
    for start in (0, 2, 4):
        (part, state), its = layer.forward(x[:, start : start + 2], state)
        assert_close(part, y[:, start : start + 2], "float64")
        kept.append((start, its))
    assert all(np.allclose(a, b) for a, b in zip(flat(state), flat(last), strict=True))
    layer.zero_grad()
    dstate = None
    for start, its in reversed(kept):
        part, dstate = layer.backward((dy[:, start : start + 2], dstate), its)
        assert_close(part, dx[:, start : start + 2], "float64")
    for a, b in zip(whole, (p.grad for p in layer.parameters()), strict=True):
        assert_close(a, b, "float64", factor=10)  # summed in another order


@in_kinds
def test_truncated_backpropagation_drops_the_gradient_of_the_carried_state(kind, rng):
    """Each piece trains as if its first state were an input: the state's value counts, its past does not."""
    layer = KINDS[kind](INPUT, H, rng=0, dtype="float64")
    x, dy = rng.normal(size=(B, 4, INPUT)), rng.normal(size=(B, 4, H))
    layer.zero_grad()
    state = None
    for start in (0, 2):
        (_, state), saved = layer.forward(x[:, start : start + 2], state)
        layer.backward((dy[:, start : start + 2], None), saved)
    found = [p.grad.copy() for p in layer.parameters()]
    middle = layer(x[:, :2])[1]
    layer.zero_grad()
    for piece, first in ((slice(0, 2), None), (slice(2, 4), tuple(s.copy() for s in flat(middle)))):
        given = None if first is None else pair(kind, first)
        layer.backward((dy[:, piece], None), layer.forward(x[:, piece], given)[1])
    for a, b in zip(found, (p.grad for p in layer.parameters()), strict=True):
        assert np.array_equal(a, b)


@in_kinds
@pytest.mark.parametrize("layers", [1, 3])
def test_steps_are_the_sequence(kind, layers, rng):
    layer = KINDS[kind](INPUT, H, layers, rng=0, dtype="float64")
    x, first = rng.normal(size=(B, T, INPUT)), pair(kind, states(kind, rng, layers, B, H))
    y, last = layer(x, first)
    state = first
    for t in range(T):
        before = [np.copy(a) for a in flat(state)]
        old = state
        y_t, state = layer.step(x[:, t], state)
        assert_close(y_t, y[:, t], "float64")
        assert all(np.array_equal(a, b) for a, b in zip(before, flat(old), strict=True))
    assert all(a.shape == (B, H) for a in flat(state))  # rows of every array are samples: a beam may reorder them
    for a, b in zip(flat(state), [s[k] for s in flat(last) for k in range(layers)], strict=True):
        assert_close(a, b, "float64")
    assert_close(layer.step(x[:, 0])[0], layer(x)[0][:, 0], "float64")


@in_kinds
def test_cells_by_hand_are_the_layer(kind, rng):
    """A decoder that calls a cell step by step gets the layer's outputs and gradients."""
    layer = KINDS[kind](INPUT, H, rng=0, dtype="float64")
    cell = layer.cells[0]
    x, first = rng.normal(size=(B, T, INPUT)), states(kind, rng, 1, B, H)
    (y, _), saved = layer.forward(x, pair(kind, first))
    dy = rng.normal(size=y.shape)
    layer.zero_grad()
    dx, dfirst = layer.backward((dy, None), saved)
    whole = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    state, kept = pair(kind, [s[0] for s in first]), []
    for t in range(T):
        state, its = cell.forward(x[:, t], state)
        kept.append(its)
        assert_close(flat(state)[0], y[:, t], "float64")
    dstate = pair(kind, [np.zeros((B, H)) for _ in first])
    for t in reversed(range(T)):
        dh, *rest = flat(dstate)
        dx_t, dstate = cell.backward(pair(kind, [dh + dy[:, t], *rest]), kept.pop())
        assert_close(dx_t, dx[:, t], "float64")
    for a, b in zip(flat(dstate), flat(dfirst), strict=True):
        assert_close(a, b[0], "float64")
    for a, p in zip(whole, layer.parameters(), strict=True):
        assert_close(p.grad, a, "float64", factor=10)  # summed in another order


# ------------------------------------------------------------------------------------------------- dropout, memory


def test_dropout_is_between_layers_and_by_sample(rng):
    gru, x = gl.GRU(INPUT, H, 2, dropout=0.5, rng=0), rng.normal(size=(B, T, INPUT)).astype(np.float32)
    (y, _), _ = gru.forward(x, train=Train(1, 2))
    assert not np.array_equal(y, gru(x)[0])
    assert np.array_equal(gru.forward(x)[0][0], gru(x)[0])
    halves = [gru.forward(x[s], train=Train(1, 2, s.start))[0][0] for s in (slice(0, 1), slice(1, B))]
    assert_close(np.concatenate(halves), y)
    one = gl.GRU(INPUT, H, dropout=0.5, rng=0)
    assert np.array_equal(one.forward(x, train=Train(1, 2))[0][0], one(x)[0])


def test_the_same_bits_every_time(rng):
    lstm, x = gl.LSTM(5, 7, 2, bidirectional=True, rng=0), rng.normal(size=(3, 9, 5)).astype(np.float32)
    found = []
    for _ in range(2):
        lstm.zero_grad()
        (y, last), saved = lstm.forward(x, lengths=[9, 2, 4])
        dx, _ = lstm.backward((y, last), saved)
        found.append([y, dx, *(p.grad.copy() for p in lstm.parameters())])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_saved_is_emptied_by_backward(rng):
    gru, x = gl.GRU(INPUT, H, 3, bidirectional=True, rng=0), rng.normal(size=(B, T, INPUT)).astype(np.float32)
    (y, _), saved = gru.forward(x)
    assert len(saved.cells) == 6
    gru.backward((y, None), saved)
    assert saved.cells == []


def test_results_are_nobody_elses_memory(rng):
    """Writing into outputs changes no gradient."""
    gru, x = gl.GRU(INPUT, H, rng=0), rng.normal(size=(B, T, INPUT)).astype(np.float32)
    dx = []
    for spoil in (False, True):
        (y, last), saved = gru.forward(x)
        dy = np.ones_like(y)
        if spoil:
            y.fill(7)
            last.fill(7)
        dx.append(gru.backward((dy, None), saved)[0])
    assert np.array_equal(*dx)


def test_initial_values():
    lstm = gl.LSTM(50, 100, rng=0)
    for parameter in lstm.parameters():
        assert 0.099 < np.abs(parameter.data).max() <= 0.1  # 1 / sqrt(100), as PyTorch
    ones = gl.GRU(2, 3, init=lambda shape, rng: np.ones(shape), rng=0)
    assert all((p.data == 1).all() == (p.data.ndim == 2) for p in ones.parameters())
    assert [name for name, _ in gl.RNN(2, 3, 2, bidirectional=True).named_parameters()] == [
        f"cells.{k}.{name}" for k in range(4) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    assert gl.RNN(2, 3, 2, bidirectional=True).cells[2].weight_ih.shape == (6, 3)


def test_frozen_parameters_get_no_gradient(rng):
    gru = gl.GRU(INPUT, H, rng=0)
    gru.cells[0].weight_hh.trainable = False
    (y, _), saved = gru.forward(rng.normal(size=(B, T, INPUT)).astype(np.float32))
    gru.backward((y, None), saved)
    assert not gru.cells[0].weight_hh.grad.any()
    assert gru.cells[0].weight_ih.grad.any()


def test_recompute_around(rng):
    rnn = gl.RNN(INPUT, H, 2, dropout=0.3, rng=0)
    x, results = rng.normal(size=(B, T, INPUT)).astype(np.float32), []
    for layer in (rnn, gl.Recompute(rnn)):
        rnn.zero_grad()
        (y, last), saved = layer.forward(x, lengths=LENGTHS, train=Train(1, 2))
        dx, _ = layer.backward((y, last), saved)
        results.append([y, dx, *(p.grad.copy() for p in rnn.parameters())])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


# ------------------------------------------------------------------------------------------------- refusals

X = np.zeros((4, 5, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: gl.RNN(2, 3, nonlinearity="sine"), ValueError, "nonlinearity must be 'tanh' or 'relu', got 'sine'"),
        (lambda: gl.GRU(0, 3), ValueError, "GRU: input_size must be at least 1, got 0"),
        (lambda: gl.LSTM(2, 3, 0), ValueError, "LSTM: num_layers must be at least 1, got 0"),
        (lambda: gl.GRU(2, 3, dropout=2), ValueError, r"p must be in 0\.\.1, got 2"),
        (lambda: gl.GRUCell(2, -1), ValueError, "GRUCell: hidden_size must be at least 1, got -1"),
        (lambda: gl.GRU(2, 3)(X[0]), ValueError, r"GRU takes an input of shape \(B, T, 2\), got \(5, 2\)"),
        (lambda: gl.GRU(3, 3)(X), ValueError, r"GRU takes an input of shape \(B, T, 3\), got \(4, 5, 2\)"),
        (lambda: gl.GRU(2, 3)(X.astype(np.float64)), TypeError, "GRU has float32 parameters and got a float64 input"),
        (lambda: gl.GRU(2, 3)([[1.0]]), TypeError, "GRU takes an array, got list"),
        (
            lambda: gl.GRU(2, 3)(X, np.zeros((4, 3), np.float32)),
            ValueError,
            r"GRU takes an initial state of shape \(1, 4, 3\), got \(4, 3\)",
        ),
        (lambda: gl.GRU(2, 3)(X, np.zeros((1, 4, 3))), TypeError, "GRU, as an initial state, has float32 parameters"),
        (
            lambda: gl.LSTM(2, 3)(X, np.zeros((1, 4, 3), np.float32)),
            TypeError,
            r"LSTM takes an initial state that is a pair \(h, c\), got ndarray",
        ),
        (
            lambda: gl.GRU(2, 3)(X, lengths=[5, 6, 1, 2]),
            ValueError,
            r"GRU: the length of sequence 1 is 6, outside 0\.\.5",
        ),
        (
            lambda: gl.GRU(2, 3)(X, lengths=[5, 0, -1, 2]),
            ValueError,
            r"GRU: the length of sequence 2 is -1, outside 0\.\.5",
        ),
        (
            lambda: gl.GRU(2, 3)(X, lengths=[5, 5]),
            ValueError,
            r"GRU takes a length for each of the 4 sequences, got shape \(2,\)",
        ),
        (lambda: gl.GRU(2, 3)(X, lengths=[1.0] * 4), TypeError, "GRU takes integer lengths, got float64"),
        (lambda: gl.GRU(2, 3, bidirectional=True).step(X[:, 0]), ValueError, "needs the whole sequence"),
        (lambda: gl.GRUCell(2, 3)(X), ValueError, r"GRUCell takes an input of shape \(B, 2\), got \(4, 5, 2\)"),
        (
            lambda: gl.GRUCell(2, 3)(X[:, 0], np.zeros((1, 3), np.float32)),
            ValueError,
            r"GRUCell takes a state of shape \(4, 3\), got \(1, 3\)",
        ),
        (lambda: gl.LSTMCell(2, 3)(X[:, 0], X[:, 0]), TypeError, r"LSTMCell takes a state that is a pair \(h, c\)"),
        (lambda: backward(gl.GRU(2, 3), X), TypeError, r"GRU\.backward takes a pair \(dy, dh_n\)"),
        (lambda: backward(gl.GRU(2, 3), (X, None)), ValueError, r"a gradient of shape \(4, 5, 3\), got \(4, 5, 2\)"),
        (
            lambda: backward(gl.GRU(2, 3), (None, X)),
            ValueError,
            r"GRU takes a gradient of shape \(1, 4, 3\), got \(4, 5, 2\)",
        ),
    ],
)
def test_one_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def backward(layer, dy):
    return layer.backward(dy, layer.forward(X)[1])
