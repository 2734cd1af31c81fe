"""RNN, GRU, LSTM and their cells against PyTorch, whose sequences of different lengths are packed."""

from functools import partial

import pytest
from outside import DTYPES, case, case_names, check_case, load

from gpulayers.layers.gru import GRU, GRUCell
from gpulayers.layers.lstm import LSTM, LSTMCell
from gpulayers.layers.rnn import RNN, RNNCell
from gpulayers.verify.cases.recurrent import Joined

INPUT, H = 3, 2
KINDS = {
    "rnn": (RNN, RNNCell),
    "relu": (partial(RNN, nonlinearity="relu"), partial(RNNCell, nonlinearity="relu")),
    "gru": (GRU, GRUCell),
    "lstm": (LSTM, LSTMCell),
}
FORMS = {
    "plain": {},
    "initial state": {},
    "no bias": {"bias": False},
    "lengths": {},
    "both directions": {"bidirectional": True},
    "both directions, lengths": {"bidirectional": True},
    "two layers, lengths": {"num_layers": 2},
    "two layers, both directions, lengths": {"num_layers": 2, "bidirectional": True},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences(kind, form, dtype):
    layer = KINDS[kind][0](INPUT, H, **FORMS[form])
    lengths = load("recurrent")["lengths"] if "lengths" in form else None
    check_case(Joined(layer), case("recurrent", f"{kind} {form}"), dtype, lengths=lengths)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind, dtype):
    check_case(Joined(KINDS[kind][1](INPUT, H)), case("recurrent", f"{kind} cell"), dtype)


def test_every_case_of_the_file_is_run():
    sequences = {f"{kind} {form}" for kind in KINDS for form in FORMS}
    assert case_names("recurrent") == sequences | {f"{kind} cell" for kind in KINDS}
