import numpy as np
import pytest
from contract import check_layer

from gpulayers import initialize
from gpulayers.layers.feedforward import ACTIVATIONS, FeedForward
from gpulayers.layers.layer import Layer
from gpulayers.step import Train

every = pytest.mark.parametrize("activation", list(ACTIVATIONS))


@every
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 5, 3), (0, 3)])
def test_contract(activation, shape, rng):
    check_layer(lambda: FeedForward(3, 7, activation, rng=0), rng.normal(size=shape))


@every
def test_contract_without_bias_and_with_dropout(activation, rng):
    x = rng.normal(size=(2, 5, 3))
    check_layer(lambda: FeedForward(3, activation=activation, bias=False, rng=0), x)
    check_layer(lambda: FeedForward(3, activation=activation, dropout=0.5, rng=0), x, train=Train(seed=1))


def test_is_the_composition_of_its_parts(rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    for activation in ACTIVATIONS:
        layer = FeedForward(3, activation=activation, rng=0)
        assert np.allclose(layer(x), layer.down(layer.activation(layer.up(x))), atol=1e-6)


def test_names_and_shapes():
    shapes = {name: p.shape for name, p in FeedForward(3).named_parameters()}
    assert shapes == {"up.weight": (3, 12), "up.bias": (12,), "down.weight": (12, 3), "down.bias": (3,)}
    assert list(dict(FeedForward(3, bias=False).named_parameters())) == ["up.weight", "down.weight"]


@pytest.mark.parametrize("activation", ["glu", "geglu", "swiglu"])
def test_gated(activation):
    """Twice the width up, and as many weights by default as without a gate."""
    layer = FeedForward(6, 10, activation)
    shapes = {name: p.shape for name, p in layer.named_parameters()}
    assert shapes == {"up.weight": (6, 20), "up.bias": (20,), "down.weight": (10, 6), "down.bias": (6,)}
    counts = [FeedForward(96, activation=kind, bias=False).parameter_count() for kind in (activation, "relu")]
    assert counts[0] == counts[1]
    assert [FeedForward(dim, activation=activation).down.in_features for dim in (1, 3, 5, 768)] == [8, 8, 16, 2048]


def test_llama_feedforward(rng):
    """down(silu(gate(x)) up(x)), where up is the first half of the columns of our up, and gate the second."""
    x = rng.normal(size=(4, 3))
    layer = FeedForward(3, 5, "swiglu", bias=False, rng=0).to(dtype="float64")
    up, gate = np.split(layer.up.weight.data, 2, axis=1)
    z = x @ gate
    assert np.allclose(layer(x), (z / (1 + np.exp(-z)) * (x @ up)) @ layer.down.weight.data, rtol=1e-12)


def test_initialisers():
    layer = FeedForward(64, init=initialize.gpt2, down_init=lambda shape, rng: initialize.gpt2(shape, rng, 24), rng=0)
    assert layer.up.weight.data.std() == pytest.approx(0.02, rel=0.05)
    assert layer.down.weight.data.std() == pytest.approx(0.02 / 24**0.5, rel=0.05)
    again = FeedForward(64, rng=3)
    assert np.array_equal(again.up.weight.data, FeedForward(64, rng=3).up.weight.data)


def test_evaluation_with_dropout_is_exact(rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    assert np.array_equal(FeedForward(3, dropout=0.9, rng=0)(x), FeedForward(3, rng=0)(x))


def test_transposed_view(rng):
    x = rng.normal(size=(3, 4, 5)).astype(np.float32).T
    layer = FeedForward(3, rng=0)
    y, saved = layer.forward(x)
    assert np.allclose(y, layer(np.ascontiguousarray(x)))
    assert layer.backward(np.ones_like(y), saved).shape == x.shape


def test_errors_are_one_sentence():
    with pytest.raises(ValueError, match=r"FeedForward: activation must be one of gelu, .*, got 'swish'"):
        FeedForward(3, activation="swish")
    with pytest.raises(ValueError, match=r"takes an input of shape \(\.\.\., 3\), got \(2, 4\)"):
        FeedForward(3)(np.zeros((2, 4), np.float32))
    with pytest.raises(TypeError, match="has float32 parameters and got a float64 input"):
        FeedForward(3)(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"p must be in 0\.\.1, got 2"):
        FeedForward(3, dropout=2)


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_what_is_saved_is_good_for_one_backward_pass(activation, rng):
    layer, x = FeedForward(4, activation=activation, rng=0), rng.standard_normal((3, 4), np.float32)
    y, saved = layer.forward(x)
    h = saved.hidden[1]
    dh_over_h = activation == "gelu"
    before = h.copy()
    layer.backward(y, saved)
    assert np.array_equal(h, before) != dh_over_h  # the gradient of h takes its place: nobody else has it
    with pytest.raises(ValueError, match="good for one backward pass"):
        layer.backward(y, saved)


def test_a_projection_of_ones_own(rng):
    """It keeps what it likes and its backward takes dy and saved alone."""

    class Wrapped(Layer):
        def __init__(self, layer):
            self.layer = layer

        def forward(self, x, train=None):
            y, saved = self.layer.forward(x)
            return y, (saved, "more")

        def backward(self, dy, saved):
            return self.layer.backward(dy, saved[0])

    plain, changed = FeedForward(4, rng=0), FeedForward(4, rng=0)
    changed.down = Wrapped(changed.down)
    x, found = rng.standard_normal((3, 4), np.float32), []
    for layer in (plain, changed):
        y, saved = layer.forward(x)
        found.append(layer.backward(y, saved))
    assert np.array_equal(*found)
