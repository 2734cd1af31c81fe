import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.linear import Linear


@pytest.mark.parametrize("leading", [(), (1,), (7,), (2, 3), (2, 0, 3), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_contract(leading, bias, rng):
    if leading == ():
        leading = (1,)
    check_layer(lambda: Linear(5, 4, bias=bias, rng=0), rng.normal(size=(*leading, 5)))


def test_one_vector(rng):
    layer = Linear(3, 2, rng=0)
    x = rng.normal(size=3).astype(np.float32)
    assert layer(x).shape == (2,)


def test_transposed_view(rng):
    layer = Linear(3, 2, rng=0)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32).T
    assert np.allclose(layer(x), layer(np.ascontiguousarray(x)))


def test_wrong_shape_is_one_sentence():
    with pytest.raises(ValueError, match=r"Linear takes an input of shape \(\.\.\., 3\), got \(2, 4\)"):
        Linear(3, 2)(np.zeros((2, 4), np.float32))


def test_wrong_dtype_is_one_sentence():
    with pytest.raises(TypeError, match="Linear has float32 parameters and got a float64 input"):
        Linear(3, 2)(np.zeros((2, 3)))


def test_frozen_weight_gets_no_gradient(rng):
    layer = Linear(3, 2, rng=0)
    layer.weight.trainable = False
    y, saved = layer.forward(np.ones((4, 3), np.float32))
    layer.backward(np.ones_like(y), saved)
    assert not layer.weight.grad.any()
    assert layer.bias.grad.tolist() == [4, 4]


def test_the_gradient_may_be_written_over_the_input(rng):
    layer, x, dy = Linear(5, 3, rng=0), rng.standard_normal((2, 4, 5), np.float32), np.ones((2, 4, 3), np.float32)
    dx = layer.backward(dy, x)
    weight = layer.weight.grad.copy()
    layer.zero_grad()
    over = layer.backward(dy, x, out=x.reshape(8, 5))
    assert np.shares_memory(over, x)
    assert np.array_equal(over, dx)
    assert np.array_equal(layer.weight.grad, weight)


def test_a_refused_gradient_leaves_the_one_that_was_there(rng):
    layer, x, dy = Linear(5, 3, rng=0), rng.standard_normal((4, 5), np.float32), np.ones((4, 3), np.float32)
    layer.backward(dy, x)
    before = [p.grad.copy() for p in layer.parameters()]
    with pytest.raises(TypeError):
        layer.backward(dy.astype(np.float64), x)
    assert all(np.array_equal(p.grad, was) for p, was in zip(layer.parameters(), before, strict=True))
    layer.zero_grad()
    with pytest.raises(TypeError):
        layer.backward(dy.astype(np.float64), x)
    assert not any(p.grad.any() for p in layer.parameters())
