"""What backward refuses in every layer: what is no gradient of its output, and a pass that has been used."""

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.models.vit import ViT, ViTConfig
from gpulayers.verify.case import LayerCase
from gpulayers.verify.certificate import collect

PASS_ON = {"Dropout", "Rotary", "SinusoidalPositions", "LearnedPositions", "Softmax", "LogSoftmax"}
PAIRS = {"RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"}  # see test_recurrent.py
CASES = {
    case.subject: case
    for case in collect(quick=True)
    if isinstance(case, LayerCase) and all(x.size for x in case.inputs) and case.subject not in PASS_ON | PAIRS
}


def passed(case):
    """layer, y and saved of a float32 pass."""
    layer, options = case.make(), dict(case.options)
    if case.train is not None:
        options["train"] = case.train.snapshot()
    inputs = (x.astype(np.float32) if x.dtype.kind == "f" else x for x in case.inputs)
    return layer, *layer.forward(*inputs, **options)


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_gradient_of_the_output(name):
    layer, y, _ = passed(CASES[name])
    if not isinstance(y, np.ndarray):
        pytest.skip("several outputs")
    wrong = [None, [1.0], y[:-1], y[..., :-1], np.ones(y.shape, np.int64), np.concatenate([y, y])]
    for dy in wrong + [y[:1]] * (len(y) > 1):
        layer, _, saved = passed(CASES[name])
        with pytest.raises((TypeError, ValueError), match=r"takes a (floating )?(gradient|input)|backward takes"):
            layer.backward(dy, saved)
        assert not any(parameter.grad.any() for parameter in layer.parameters())


def models():
    ids, pixels = np.ones((2, 3), np.int64), np.ones((2, 4, 4, 1), np.float32)
    x, memory = np.ones((2, 3, 4), np.float32), np.ones((2, 5, 4), np.float32)
    yield gl.EncoderBlock(4, 2), (x,)
    yield gl.DecoderBlock(4, 2), (x, memory)
    yield gl.Sequential(gl.Linear(4, 4), gl.Tanh()), (x,)
    yield gl.GPT(gl.GPTConfig(vocab=5, context=3, layers=1, heads=1, dim=4)), (ids,)
    yield FeedForwardNet(FeedForwardConfig(5, 3, 2, (4,))), (ids,)
    yield Transformer(TransformerConfig(5, 5, dim=4, heads=1, layers=1)), (ids, ids)
    yield Seq2Seq(Seq2SeqConfig(5, 5, dim=2, hidden=3)), (ids, ids)
    yield ViT(ViTConfig((4, 4), 1, 2, 3, dim=4, heads=1, layers=1)), (pixels,)


@pytest.mark.parametrize(("model", "inputs"), list(models()), ids=lambda value: type(value).__name__)
def test_saved_is_good_for_one_pass(model, inputs):
    y, saved = model.forward(*inputs)
    model.backward(np.ones_like(y), saved)
    with pytest.raises(ValueError, match="this saved has been used"):
        model.backward(np.ones_like(y), saved)


@pytest.mark.parametrize("kind", [gl.GRU, gl.LSTM, gl.RNN])
def test_saved_of_a_recurrent_layer_is_good_for_one_pass(kind):
    layer = kind(3, 4, 2, bidirectional=True)
    (y, _), saved = layer.forward(np.ones((2, 5, 3), np.float32))
    layer.backward((y, None), saved)
    with pytest.raises(ValueError, match="this saved has been used"):
        layer.backward((y, None), saved)


@pytest.mark.parametrize("kind", [gl.GRUCell, gl.LSTMCell])
def test_saved_of_a_cell_that_works_in_its_gates_is_good_for_one_pass(kind):
    cell = kind(3, 4)
    y, saved = cell.forward(np.ones((2, 3), np.float32))
    cell.backward(y, saved)
    with pytest.raises(ValueError, match="this saved has been used"):
        cell.backward(y, saved)
