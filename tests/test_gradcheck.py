"""Does `gradcheck` find what is wrong, and only that?"""

import numpy as np
import pytest

from gpulayers.backend import use
from gpulayers.gradcheck import GradientError, gradcheck
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.parameter import Parameter


class Product(Layer):
    """y = gain a b, with a switch for each fault."""

    def __init__(self, fault: str = "") -> None:
        self.gain = Parameter(np.array([1, 2, 3], np.float32))
        self.fault = fault

    def forward(self, a, b, ids=None, train=None):
        if self.fault == "forward writes":
            a += 1
        return self.gain.data * a * b, (a, b)

    def backward(self, dy, saved):
        a, b = saved
        self.gain.add_grad((dy * a * b).sum(axis=0))
        da, db = dy * self.gain.data * b, dy * self.gain.data * a
        match self.fault:
            case "sign":
                da = -da
            case "one element":
                db[0, 1] *= 2
            case "parameter":
                self.gain.add_grad(0 * self.gain.data + 0.1)
            case "backward writes":
                dy *= 0.5
            case "shape":
                da = da[0]
            case "one missing":
                return da
            case "nan":
                da[0, 0] = np.nan
        return da, db


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(2, 4, 3))


def test_right_gradients_pass(inputs):
    assert gradcheck(Product(), *inputs) < 1e-9
    assert gradcheck(Product(), *inputs.astype(np.float32)) < 1e-9  # it is checked in float64 all the same
    assert gradcheck(Linear(3, 2, rng=0), inputs[0]) < 1e-9


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("sign", "Product: backward is not the derivative of forward .*\n.*input 0: .*worst element"),
        ("one element", r"input 1: .*worst element \(0, 1\): backward says .*, finite differences"),
        ("parameter", "parameter gain: relative error"),
        ("forward writes", "forward wrote its input 0"),
        ("backward writes", "backward wrote dy"),
        ("shape", r"the gradient of input 0 has shape \(3,\), not \(4, 3\)"),
        ("one missing", "backward returned 1 gradients for 2 floating inputs"),
        ("nan", r"input 0: .*worst element \(0, 0\): backward says nan"),
    ],
)
def test_faults_are_found_and_named(fault, message, inputs):
    with pytest.raises(GradientError, match=message):
        gradcheck(Product(fault), *inputs)


@pytest.mark.parametrize(("fault", "innocent"), [("one element", "input 0"), ("nan", "input 1")])
def test_only_the_wrong_one_is_named(fault, innocent, inputs):
    with pytest.raises(GradientError) as caught:
        gradcheck(Product(fault), *inputs)
    assert innocent not in str(caught.value)
    assert "gain" not in str(caught.value)


def test_the_layer_and_the_inputs_are_left_alone(inputs):
    layer = Product()
    layer.gain.grad += np.float32(5)
    before = inputs.copy()
    gradcheck(layer, *inputs)
    assert layer.gain.dtype == np.float32
    assert (layer.gain.grad == 5).all()
    assert np.array_equal(inputs, before)


def test_integers_pass_through_and_frozen_parameters_are_skipped(inputs):
    layer = Product()
    layer.gain.trainable = False
    gradcheck(layer, *inputs, np.array([1, 2]))


def test_a_loss(inputs):
    target = inputs[1]

    def loss(x, factor=1.0):
        return factor * ((x - target) ** 2).sum(), factor * 2 * (x - target)

    gradcheck(loss, inputs[0], factor=3.0)

    def wrong(x):
        return (x * x).sum(), x

    with pytest.raises(GradientError, match="wrong: backward is not"):
        gradcheck(wrong, inputs[0])


def test_empty_inputs():
    assert gradcheck(Product(), np.zeros((0, 3)), np.zeros((0, 3))) == 0


def test_a_layer_and_arrays_on_a_gpu(rng):
    xp = use("emulated")
    layer = MultiHeadAttention(4, 2, rng=0).to("emulated")
    x, hide = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.random((3, 3)) < 0.3
    on_gpu = gradcheck(layer, xp.asarray(x), hide=xp.asarray(hide))
    assert on_gpu == gradcheck(layer.to("numpy"), x, hide=hide)
