import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.rmsnorm import RMSNorm


@pytest.mark.parametrize("shape", [(5,), (4, 7), (2, 3, 8), (0, 4), (3, 1023), (70, 1009)])
def test_contract(shape, rng):
    check_layer(lambda: RMSNorm(shape[-1], eps=1e-5), rng.normal(size=shape))


def test_contract_of_one_column(rng):
    """x / sqrt(x^2 + eps) is flat for a small eps: the gradient would be a difference of nearly equal numbers."""
    check_layer(lambda: RMSNorm(1, eps=1.0), rng.normal(size=(3, 1)))


@pytest.mark.parametrize(("shape", "trailing"), [((3, 4, 7), (4, 7)), ((0, 4, 7), (4, 7)), ((2, 3, 1023), 1023)])
@pytest.mark.parametrize("affine", [True, False])
def test_contract_of_several_axes(shape, trailing, affine, rng):
    check_layer(lambda: RMSNorm(trailing, 1e-5, affine), rng.uniform(-2, 4, shape))


def test_worked_numbers():
    layer = RMSNorm(2)
    y, saved = layer.forward(np.array([[3, 4]], np.float32))  # rms = sqrt(12.5)
    assert np.allclose(y, [[0.8485281, 1.1313708]], rtol=1e-6)
    dx = layer.backward(np.array([[1, 0]], np.float32), saved)
    assert np.allclose(dx, [[16 / 12.5**1.5 / 2, -12 / 12.5**1.5 / 2]], rtol=1e-5)
    assert np.allclose(layer.weight.grad, [0.8485281, 0], rtol=1e-6)


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean(mean):
    """burn-rs #5607's rows: RMSNorm subtracts no mean, so nothing may cancel."""
    x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    exact = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean())
    assert np.allclose(RMSNorm(4)(x), exact, rtol=2e-7)


def test_default_eps_is_the_machine_epsilon():
    """torch.nn.RMSNorm(4)(torch.full((1, 4), 1e-4)) gives 0.2782."""
    assert np.allclose(RMSNorm(4)(np.full((1, 4), 1e-4, np.float32)), 1e-4 / (1e-8 + 2**-23) ** 0.5, rtol=1e-6)
    assert np.allclose(RMSNorm(4, dtype="float64")(np.full((1, 4), 1e-4)), 1)


def test_zero_row_is_zero():
    layer = RMSNorm(3)
    y, saved = layer.forward(np.zeros((2, 3), np.float32))
    assert not y.any()
    assert np.isfinite(layer.backward(np.ones((2, 3), np.float32), saved)).all()


def test_nan_stays_in_its_row():
    x = np.ones((3, 4), np.float32)
    x[1, 2] = np.nan
    assert np.isnan(RMSNorm(4)(x)).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(RMSNorm(4)(x)).any(axis=1).tolist() == [False, True, False]


def test_transposed_view(rng):
    layer = RMSNorm(3)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32).T
    y, saved = layer.forward(x)
    assert np.allclose(y, layer(np.ascontiguousarray(x)))
    dx = layer.backward(x, saved)
    assert np.allclose(dx, layer.backward(np.ascontiguousarray(x), layer.forward(np.ascontiguousarray(x))[1]))


def test_wrong_inputs_are_one_sentence():
    with pytest.raises(ValueError, match="RMSNorm: normalized_shape must be at least 1, got 0"):
        RMSNorm(0)
    with pytest.raises(ValueError, match=r"RMSNorm takes an input of shape \(\.\.\., 3\), got \(2, 4\)"):
        RMSNorm(3)(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"RMSNorm takes an input of shape \(\.\.\., 2, 3\), got \(2, 4\)"):
        RMSNorm((2, 3))(np.zeros((2, 4), np.float32))
    with pytest.raises(TypeError, match="RMSNorm has float32 parameters and got a float64 input"):
        RMSNorm(3)(np.zeros((2, 3)))
