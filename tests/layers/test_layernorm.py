import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.layernorm import LayerNorm


@pytest.mark.parametrize("shape", [(1, 1), (4, 7), (2, 3, 8), (0, 4), (3, 1023)])
@pytest.mark.parametrize("bias", [True, False])
def test_contract(shape, bias, rng):
    check_layer(lambda: LayerNorm(shape[-1], bias=bias), rng.normal(size=shape))


@pytest.mark.parametrize(
    ("shape", "trailing", "options"),
    [
        ((3, 4, 7), (4, 7), {}),
        ((2, 3, 5, 7), (3, 5, 7), {"bias": False}),
        ((4, 7), (4, 7), {}),
        ((5, 1, 1), [1, 1], {"eps": 1e-3}),
        ((0, 4, 7), (4, 7), {}),
        ((3, 4, 7), (4, 7), {"elementwise_affine": False}),
        ((4, 1023), 1023, {"elementwise_affine": False}),
    ],
)
def test_contract_of_several_axes(shape, trailing, options, rng):
    check_layer(lambda: LayerNorm(trailing, **options), rng.uniform(-2, 4, shape))


def test_several_axes_are_one(rng):
    layer, flat = LayerNorm((4, 7)), LayerNorm(28)
    assert layer.weight.shape == layer.bias.shape == (4, 7)
    layer.weight.data[...], layer.bias.data[...] = rng.normal(size=(2, 4, 7))
    flat.weight.data[...], flat.bias.data[...] = layer.weight.data.reshape(28), layer.bias.data.reshape(28)
    x, f, dy = rng.normal(size=(3, 5, 4, 7)).astype(np.float32)
    total, y, saved = layer.forward_sum(x, f)
    _, y_flat, saved_flat = flat.forward_sum(x.reshape(5, 28), f.reshape(5, 28))
    assert np.array_equal(y.reshape(5, 28), y_flat)
    dx = layer.backward(dy, saved, residual=total)
    dx_flat = flat.backward(dy.reshape(5, 28), saved_flat, residual=total.reshape(5, 28))
    assert np.array_equal(dx.reshape(5, 28), dx_flat)
    assert np.array_equal(layer.weight.grad.reshape(28), flat.weight.grad)


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(mean):
    """burn-rs #5607, pytorch PR #40308: the one-pass variance E[x^2] - E[x]^2 gives 0 or garbage here."""
    x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    expected = [[-1.3416193, -0.4472064, 0.4472064, 1.3416193]]
    assert np.allclose(LayerNorm(4)(x), expected, rtol=1e-6)


def test_rows_of_every_kind_share_a_block(rng):
    """Large and small means, a constant row and a NaN in one block: none changes what another row gets."""
    x = rng.normal(size=(6, 50)).astype(np.float32)
    x[1] += 30000
    x[2] = 5
    x[3, 7] = np.nan
    x[4] -= 1e6
    layer = LayerNorm(50)
    y, saved = layer.forward(x)
    dx = layer.backward(np.ones_like(x) * x[0], saved)
    assert np.isnan(y).any(axis=1).tolist() == [False, False, False, True, False, False]
    assert np.isnan(dx).any(axis=1).tolist() == [False, False, False, True, False, False]
    exact = layer.to(dtype="float64")(x.astype(np.float64))
    good = [0, 1, 2, 4, 5]
    assert np.allclose(y[good], exact[good], rtol=1e-5, atol=1e-5)


def test_a_large_mean_in_backward(rng):
    x = (1e5 + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    dy = rng.normal(size=(1, 4)).astype(np.float32)
    near, far = LayerNorm(4), LayerNorm(4)
    expected = near.backward(dy, near.forward(x - np.float32(1e5))[1])
    assert np.allclose(far.backward(dy, far.forward(x)[1]), expected, rtol=1e-5, atol=1e-6)


def test_transposed_view(rng):
    layer = LayerNorm(3)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32).T
    y, saved = layer.forward(x)
    assert np.allclose(y, layer(np.ascontiguousarray(x)), atol=1e-6)
    expected = layer.backward(np.ascontiguousarray(x), layer.forward(np.ascontiguousarray(x))[1])
    assert np.allclose(layer.backward(x, saved), expected, atol=1e-6)


def test_wrong_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="LayerNorm: normalized_shape must be at least 1, got 0"):
        LayerNorm(0)
    with pytest.raises(ValueError, match=r"LayerNorm takes an input of shape \(\.\.\., 3\), got \(2, 4\)"):
        LayerNorm(3)(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"LayerNorm takes an input of shape \(\.\.\., 4, 3\), got \(3,\)"):
        LayerNorm((4, 3))(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"LayerNorm: normalized_shape must have at least one size, got \(\)"):
        LayerNorm(())
    with pytest.raises(TypeError, match=r"LayerNorm: normalized_shape must be an integer, got 2\.0"):
        LayerNorm((4, 2.0))
    with pytest.raises(TypeError, match="LayerNorm has float32 parameters and got a float64 input"):
        LayerNorm(3)(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="LayerNorm takes a floating input, got int64"):
        LayerNorm(3, elementwise_affine=False)(np.zeros((2, 3), np.int64))


def test_sum_and_residual_gradient(rng):
    """x + f is normalised as if it were made first, and the gradient past the norm is added to the norm's own."""
    x, f, dy, past = rng.normal(size=(4, 3, 5, 8)).astype(np.float32)
    layer = LayerNorm(8)
    layer.weight.data[...] = rng.normal(size=8)
    y, saved = layer.forward(x + f)
    dx = layer.backward(dy, saved)
    dweight = layer.weight.grad.copy()
    total, y_sum, saved_sum = layer.forward_sum(x, f)
    assert np.array_equal(total, x + f)
    assert np.array_equal(y_sum, y)
    layer.zero_grad()
    assert np.array_equal(layer.backward(dy, saved_sum, residual=past), dx + past)
    assert np.array_equal(layer.weight.grad, dweight)
    with pytest.raises(ValueError, match=r"LayerNorm.forward_sum takes two inputs of one shape, got .* and \(5, 8\)"):
        layer.forward_sum(x, f[0])
