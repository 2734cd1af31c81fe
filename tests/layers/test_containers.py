import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.layer import Layer
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.recompute import Recompute
from gpulayers.layers.residual import Residual
from gpulayers.layers.sequential import Sequential
from gpulayers.masks import padding_mask
from gpulayers.step import Train


class Identity(Layer):
    """Gives back the very arrays that it gets."""

    def forward(self, x, train=None):
        return x, None

    def backward(self, dy, saved):
        return dy


class Never(Linear):
    """Fails if anything but the evaluation path is used."""

    def __call__(self, x):
        return super().forward(x)[0]

    def forward(self, x, train=None):
        raise AssertionError("evaluation ran forward, which saves values")


def block(rng=0, dropout=0.0):
    rng = np.random.default_rng(rng)
    attention = MultiHeadAttention(4, 2, dropout=dropout, rng=rng)
    return Sequential(Residual(Sequential(LayerNorm(4), attention)), Residual(Linear(4, 4, rng=rng)))


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 3, 4), (0, 3, 4)])
def test_contract(shape, rng):
    x = rng.normal(size=shape)
    check_layer(block, x)
    check_layer(lambda: block(dropout=0.3), x, train=Train(seed=1))
    check_layer(lambda: Recompute(block(dropout=0.3)), x, train=Train(seed=1))
    check_layer(lambda: Residual(Identity()), x)
    check_layer(lambda: Sequential(), x)


def test_options_and_further_inputs_pass_through(rng):
    def make():
        return Recompute(Residual(MultiHeadAttention(4, 2, kdim=3, dropout=0.2, rng=0)))

    hide = padding_mask(lengths=[3, 1], size=3)
    check_layer(make, rng.normal(size=(2, 2, 4)), rng.normal(size=(2, 3, 3)), hide=hide, causal=True, train=Train())


def test_recompute_gives_the_same_bits(rng):
    x, dy = rng.normal(size=(2, 2, 5, 4)).astype(np.float32)
    found = []
    for wrap in (lambda layer: layer, Recompute):
        layer = Sequential(wrap(block(0, 0.4)), wrap(block(1, 0.4)))
        train = Train(seed=7, step=3)
        y, saved = layer.forward(x, train=train)
        dx = layer.backward(dy, saved)
        found.append([y, dx, *(p.grad for p in layer.parameters()), train.position])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_recompute_saves_only_its_inputs(rng):
    x = rng.normal(size=(2, 5, 4)).astype(np.float32)
    _, saved = Recompute(block()).forward(x)
    assert saved.inputs[0] is x
    assert saved == ((x,), {}, None)


def test_saved_lists_are_emptied(rng):
    layer = Sequential(Linear(3, 3, rng=0), Linear(3, 2, rng=0))
    y, saved = layer.forward(rng.normal(size=(4, 3)).astype(np.float32))
    assert len(saved) == 2
    layer.backward(y, saved)
    assert saved == []


def test_evaluation_saves_nothing(rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    layer = Recompute(Sequential(Residual(Never(3, 3, rng=0)), Never(3, 2, rng=0)))
    assert layer(x).shape == (4, 2)


def test_sequential_is_a_sequence():
    a, b = Linear(3, 3, rng=0), Linear(3, 2, rng=0)
    layer = Sequential(a, b)
    assert len(layer) == 2
    assert layer[1] is b
    assert list(layer) == [a, b]
    assert next(layer.named_parameters())[0] == "layers.0.weight"
    with pytest.raises(TypeError, match=r"Sequential takes layers, got list: write Sequential\(a, b, c\)"):
        Sequential([a, b])


def test_residual_refuses_a_change_of_shape():
    with pytest.raises(ValueError, match=r"Residual: Linear turned shape \(4, 3\) into \(4, 1\)"):
        Residual(Linear(3, 1, rng=0))(np.zeros((4, 3), np.float32))
