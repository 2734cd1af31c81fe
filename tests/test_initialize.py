import functools
import math

import numpy as np
import pytest

from gpulayers import initialize as init
from gpulayers.layers.linear import Linear

SHAPE = (300, 200)
N = SHAPE[0] * SHAPE[1]


def rng():
    return np.random.default_rng(4)


@pytest.mark.parametrize(
    ("function", "variance"),
    [
        (init.fan_in_uniform, 1 / (3 * 300)),
        (init.xavier_uniform, 2 / 500),
        (init.xavier_normal, 2 / 500),
        (init.he_uniform, 2 / 300),
        (init.he_normal, 2 / 300),
        (functools.partial(init.he_normal, gain=init.gain("leaky_relu", 0.5)), 1.6 / 300),
        (functools.partial(init.xavier_uniform, gain=init.gain("tanh")), 25 / 9 * 2 / 500),
        (init.gpt2, 0.02**2),
        (functools.partial(init.gpt2, residual_layers=24), 0.02**2 / 24),
        (functools.partial(init.normal, std=3), 9),
        (functools.partial(init.uniform, bound=3), 3),
    ],
)
def test_mean_and_variance(function, variance):
    values = function(SHAPE, rng())
    assert values.shape == SHAPE
    assert values.dtype == np.float64
    assert abs(values.mean()) < 4 * math.sqrt(variance / N)
    assert values.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / N))


@pytest.mark.parametrize(
    ("function", "bound"),
    [
        (init.fan_in_uniform, 1 / math.sqrt(300)),
        (init.xavier_uniform, math.sqrt(6 / 500)),
        (init.he_uniform, math.sqrt(6 / 300)),
    ],
)
def test_uniform_bounds(function, bound):
    values = function(SHAPE, rng())
    assert 0.999 * bound < np.abs(values).max() <= bound * (1 + 1e-15)
    assert np.allclose(values, rng().uniform(-bound, bound, SHAPE), rtol=1e-14)


@pytest.mark.parametrize(("function", "std"), [(init.xavier_normal, math.sqrt(2 / 500)), (init.gpt2, 0.02)])
def test_normal_is_the_generators(function, std):
    assert np.array_equal(function(SHAPE, rng()), rng().normal(0, std, SHAPE))


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (1, 1), (2, 3, 4)])
def test_orthogonal(shape):
    matrix = init.orthogonal(shape, rng(), gain=2.0).reshape(-1, shape[-1]) / 2
    rows, cols = matrix.shape
    product = matrix.T @ matrix if rows >= cols else matrix @ matrix.T
    assert np.allclose(product, np.eye(min(rows, cols)), atol=1e-14)


def test_orthogonal_is_uniform_over_all_matrices():
    """QR alone leans to one side: the diagonal of Q would be negative far more often than positive."""
    generator = rng()
    diagonal = np.array([np.diag(init.orthogonal((3, 3), generator)) for _ in range(2000)])
    assert np.abs(diagonal.mean(axis=0)).max() < 0.06  # standard deviation 0.013
    assert np.allclose((diagonal**2).mean(axis=0), 1 / 3, atol=0.04)


def test_fans_are_those_of_a_layer_with_leading_axes():
    assert np.abs(init.he_uniform((2, 5, 7), rng())).max() <= math.sqrt(6 / 10)


def test_empty_shapes():
    for function in (init.xavier_normal, init.he_uniform, init.fan_in_uniform, init.gpt2):
        assert function((0, 3), rng()).shape == (0, 3)


def test_gains():
    assert init.gain("relu") == math.sqrt(2) == init.gain("leaky_relu", 0)
    assert init.gain("leaky_relu") == pytest.approx(math.sqrt(2 / 1.0001))
    with pytest.raises(ValueError, match=r"gain: activation must be one of linear, .*, got 'swish'"):
        init.gain("swish")


def test_a_deep_relu_network_keeps_its_signal():
    """He et al., section 2.2: with variance 2 / fan_in the mean square stays, with Xavier's it halves at each layer."""
    generator = rng()
    x = generator.normal(size=(64, 256))
    start = (x * x).mean()
    for _ in range(20):
        x = np.maximum(x, 0) @ init.he_normal((256, 256), generator)
    assert 0.3 < (x * x).mean() / start < 3


def test_a_vector_has_no_fans():
    with pytest.raises(ValueError, match=r"needs a matrix \(fan_in, fan_out\), got shape \(3,\)"):
        init.xavier_uniform((3,), rng())


def test_generator():
    generator = rng()
    assert init.generator(generator) is generator
    assert init.generator(7).random() == np.random.default_rng(7).random()
    assert init.generator(None).random() != init.generator(None).random()


def test_linear_takes_a_seed_and_an_initialiser():
    assert np.array_equal(Linear(4, 3, rng=1).weight.data, Linear(4, 3, rng=1).weight.data)
    layer = Linear(400, 300, init=init.gpt2, rng=1)
    assert layer.weight.data.std() == pytest.approx(0.02, rel=0.02)
    assert np.abs(Linear(400, 300, rng=1).weight.data).max() <= np.float32(1 / 20)


def test_other_names():
    assert init.kaiming_normal is init.he_normal
    assert init.kaiming_uniform is init.he_uniform
    assert init.glorot_normal is init.xavier_normal
    assert init.glorot_uniform is init.xavier_uniform
