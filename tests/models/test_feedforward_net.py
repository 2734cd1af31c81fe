import dataclasses
from itertools import product

import numpy as np
import pytest
from contract import check_layer
from tolerances import assert_close

from gpulayers.models.feedforward import ACTIVATIONS, AROUND, INITS, FeedForwardConfig, FeedForwardNet
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import SGD, Adam
from gpulayers.step import Train

TINY = FeedForwardConfig(vocab=11, context=3, dim=4, widths=(7, 6, 6))


def tiny(seed=1, **changes):
    return FeedForwardNet(dataclasses.replace(TINY, **changes), seed=seed)


@pytest.fixture
def ids(rng):
    return rng.integers(0, 11, (5, 3))


@pytest.mark.parametrize(("activation", "around"), list(product(ACTIVATIONS, AROUND)))
def test_every_form(activation, around, ids):
    check_layer(lambda: tiny(activation=activation, around=around), ids)
    if around == "batchnorm" or activation == "tanh":  # evaluation is another function there; once for each form
        check_layer(lambda: tiny(activation=activation, around=around, dropout=0.3), ids, train=Train(seed=1, step=2))


@pytest.mark.parametrize("init", INITS)
def test_initial_values(init, ids):
    check_layer(lambda: tiny(init=init), ids)


@pytest.mark.parametrize("widths", [(), (1,), (7, 5)])
def test_widths(widths, ids):
    check_layer(lambda: tiny(widths=widths), ids)
    assert sorted(tiny(widths=widths).W) == list(range(1, len(widths) + 2))


def test_an_empty_batch():
    check_layer(tiny, np.zeros((0, 3), int))


def test_one_step_by_the_formulas_of_the_page(ids):
    """dW1 = h1' dlogits, dz1 = dh1 f'(z1), dW2 = h2' dz1, dh2 = dz1 W2' ..., written out with plain arrays."""
    model = FeedForwardNet(dataclasses.replace(TINY, widths=(7, 6)), seed=1).to(dtype="float64")
    targets = np.arange(5)
    table = model.embedding.weight.data
    weights = {3: model.W[3].linear, 2: model.W[2].linear, 1: model.W[1]}
    W3, W2, W1 = (weights[k].weight.data for k in (3, 2, 1))
    b3, b2, b1 = (weights[k].bias.data for k in (3, 2, 1))
    h3 = np.concatenate([table[ids[:, i]] for i in range(3)], axis=1)
    h2 = np.tanh(h3 @ W3 + b3)
    h1 = np.tanh(h2 @ W2 + b2)
    p = np.exp(h1 @ W1 + b1)
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(5), targets]).mean()
    dlogits = (p - np.eye(11)[targets]) / 5
    dz1 = (dlogits @ W1.T) * (1 - h1**2)
    dz2 = (dz1 @ W2.T) * (1 - h2**2)
    dh3 = (dz2 @ W3.T).reshape(5, 3, 4)
    dtable = np.zeros_like(table)
    np.add.at(dtable, ids, dh3)

    logits, saved = model.forward(ids)
    found, dfound = cross_entropy(logits, targets)
    model.backward(dfound, saved)
    assert_close(float(found), loss)
    for k, dW, db in ((3, h3.T @ dz2, dz2), (2, h2.T @ dz1, dz1), (1, h1.T @ dlogits, dlogits)):
        assert_close(weights[k].weight.grad, dW, "float64", factor=10)
        assert_close(weights[k].bias.grad, db.sum(axis=0), "float64", factor=10)
    assert_close(model.embedding.weight.grad, dtable, "float64", factor=10)


def test_spread_of_the_initial_values():
    wide = FeedForwardConfig(vocab=64, context=4, dim=64, widths=(256, 256))
    spread = {}
    for init, activation in (("naive", "relu"), ("xavier", "relu"), ("he", "relu"), ("he", "prelu")):
        model = FeedForwardNet(dataclasses.replace(wide, init=init, activation=activation))
        assert not any(p.data.any() for name, p in model.named_parameters() if name.endswith("bias"))
        spread[init, activation] = model.W[2].linear.weight.data.std(), model.W[1].weight.data.std()
    assert spread["naive", "relu"] == pytest.approx((1, 1), rel=0.05)
    assert spread["xavier", "relu"] == pytest.approx(((2 / 512) ** 0.5, (2 / 320) ** 0.5), rel=0.05)
    assert spread["he", "relu"] == pytest.approx(((2 / 256) ** 0.5, (1 / 256) ** 0.5), rel=0.05)
    assert spread["he", "prelu"] == pytest.approx(((2 / 256 / (1 + 0.25**2)) ** 0.5, (1 / 256) ** 0.5), rel=0.05)


def test_a_residual_needs_equal_widths():
    model = tiny(around="residual")
    assert [model.W[k].residual for k in (4, 3, 2)] == [False, False, True]


def test_documented_names():
    names = [name for name, _ in tiny(widths=(7, 6), around="layernorm", activation="prelu").named_parameters()]
    parts = ["linear.weight", "linear.bias", "norm.weight", "norm.bias", "activation.weight"]
    assert names == ["embedding.weight", *(f"W.{k}.{p}" for k in (3, 2) for p in parts), "W.1.weight", "W.1.bias"]
    assert "W.3.linear.bias" not in dict(tiny(around="batchnorm").named_parameters())


@pytest.mark.parametrize("optimizer", [lambda m: SGD(m, lr=0.5), lambda m: Adam(m, lr=0.02)])
def test_it_learns(optimizer, ids):
    model = tiny()
    optimizer, losses = optimizer(model), []
    for step in range(80):
        logits, saved = model.forward(ids, Train(step=step))
        loss, dlogits = cross_entropy(logits, np.arange(5))
        model.backward(dlogits, saved)
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.3 < losses[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab": 0}, "vocab must be at least 1, got 0"),
        ({"context": 0}, "context must be at least 1, got 0"),
        ({"dim": 2.5}, "dim must be an integer, got 2.5"),
        ({"widths": (8, 0)}, r"widths must be a tuple of numbers of at least 1, got \(8, 0\)"),
        ({"widths": [8]}, r"widths must be a tuple of numbers of at least 1, got \[8\]"),
        ({"activation": "silu"}, "activation must be one of tanh, relu, leaky_relu, prelu, gelu"),
        ({"init": "zero"}, "init must be one of default, naive, xavier, he, got 'zero'"),
        ({"around": "norm"}, "around must be one of plain, residual, batchnorm, layernorm, got 'norm'"),
        ({"dropout": 1.5}, "p must be in 0..1, got 1.5"),
    ],
)
def test_wrong_sizes(changes, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        tiny(**changes)


def test_wrong_ids():
    with pytest.raises(ValueError, match=r"FeedForwardNet takes ids of shape \(B, 3\), got \(2, 4\)"):
        tiny().forward(np.zeros((2, 4), int))
    with pytest.raises(TypeError, match="FeedForwardNet"):
        tiny()(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="11"):
        tiny().forward(np.full((1, 3), 11))
