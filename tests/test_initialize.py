import functools
import math

import numpy as np
import pytest

from gpulayers import initialize as init
from gpulayers.layers.linear import Linear
from gpulayers.models.gpt import GPT, GPTConfig

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
        (functools.partial(init.uniform, a=-1, b=1), 1 / 3),
        (functools.partial(init.he_normal, mode="fan_out"), 2 / 200),
        (functools.partial(init.he_uniform, mode="fan_out", gain=1.0), 1 / 200),
        (init.kaiming_uniform, 2 / 300),
        (functools.partial(init.kaiming_uniform, a=math.sqrt(5)), 1 / 3 / 300),  # how PyTorch's Linear starts
        (functools.partial(init.kaiming_normal, a=0.5, mode="fan_out"), 1.6 / 200),
        (functools.partial(init.kaiming_normal, nonlinearity="tanh"), 25 / 9 / 300),
        (functools.partial(init.xavier_normal, gain=init.gain("selu")), 9 / 16 * 2 / 500),
        (functools.partial(init.trunc_normal, std=0.5), 0.25 * 0.998867),  # cut at 4 standard deviations
        (init.trunc_normal, 0.773741),  # 1 - 2 * 2 phi(2) / (Phi(2) - Phi(-2))
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
    assert np.array_equal(init.kaiming_normal(SHAPE, rng()), init.he_normal(SHAPE, rng()))
    assert np.array_equal(init.kaiming_uniform(SHAPE, rng()), init.he_uniform(SHAPE, rng()))
    assert init.glorot_normal is init.xavier_normal
    assert init.glorot_uniform is init.xavier_uniform


def test_constant_eye_and_ranges():
    assert (init.constant((2, 3), rng(), 0.25) == 0.25).all()
    assert np.array_equal(init.eye((2, 3), rng()), [[1, 0, 0], [0, 1, 0]])
    values = init.uniform(SHAPE, rng(), a=2, b=5)
    assert 2 <= values.min() < 2.001 < 4.999 < values.max() < 5
    assert init.normal(SHAPE, rng(), 0.5, mean=3).mean() == pytest.approx(3, abs=0.01)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((-2, 2), 0.0),
        ((0, 9), 0.797885),
        ((1, 3), 1.510049),
        ((4, 5), 4.216831),
        ((-5, -4), -4.216831),
        ((8, 9), 8.121189),
    ],
)
def test_trunc_normal(bounds, expected):
    """The mean of what is left: (phi(a) - phi(b)) / (Phi(b) - Phi(a)); far outside too, where drawing never ends."""
    values = init.trunc_normal((100, 100), rng(), 0.0, 1.0, *bounds)
    assert bounds[0] <= values.min() <= values.max() <= bounds[1]
    assert values.mean() == pytest.approx(expected, abs=4 * values.std() / 100)
    shifted = init.trunc_normal((100, 100), rng(), 2.0, 3.0, 2 + 3 * bounds[0], 2 + 3 * bounds[1])
    assert shifted == pytest.approx(2 + 3 * values, abs=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [(3,), (3, 5), (1, 2, 3)])
def test_dirac_passes_its_input_on(size, groups):
    """A correlation with the kernel gives the input back, as far as there are channels; (*size, inputs, outputs)."""
    kernel = init.dirac((*size, 2, 6), rng(), groups)
    middle = kernel[tuple(n // 2 for n in size)]
    assert kernel.sum() == middle.sum() == 2 * groups
    for group in range(groups):
        mine = middle[:, group * 6 // groups : (group + 1) * 6 // groups]
        assert np.array_equal(mine, np.eye(2, 6 // groups))


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.75, 1.0])
def test_sparse(sparsity):
    values = init.sparse((40, 30), rng(), sparsity, std=2.0)
    assert ((values == 0).sum(axis=0) == math.ceil(40 * sparsity)).all()
    rest = values[values != 0]
    assert rest.size == 0 or rest.std() == pytest.approx(2, rel=0.15)
    zeros_of_rows = (values == 0).sum(axis=1)
    assert sparsity in (0.0, 1.0) or zeros_of_rows.std() > 0  # each column has its own


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: init.uniform((2,), rng(), a=1), "uniform takes a and b together, got 1 and None"),
        (lambda: init.uniform((2,), rng(), a=2, b=1), "uniform: the range must not be empty, got 2..1"),
        (lambda: init.trunc_normal((2,), rng(), a=2, b=1), "trunc_normal takes a below b and a std above 0, got 2, 1"),
        (lambda: init.eye((2,), rng()), r"eye takes a matrix, got shape \(2,\)"),
        (lambda: init.dirac((2, 3), rng()), "dirac takes a kernel"),
        (lambda: init.dirac((3, 2, 5), rng(), 2), "dirac: groups must divide the outputs, got 2 and 5"),
        (lambda: init.sparse((3,), rng()), r"sparse takes a matrix, got shape \(3,\)"),
        (lambda: init.sparse((3, 3), rng(), 1.5), r"sparse: sparsity must be in 0..1, got 1.5"),
        (lambda: init.he_normal((3, 3), rng(), mode="fan"), "mode must be fan_in or fan_out, got 'fan'"),
    ],
)
def test_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_nothing_is_drawn_for_a_model_that_is_overwritten():
    config = GPTConfig(vocab=11, context=7, layers=2, heads=2, dim=8, tied=False)
    empty, drawn = (dict(GPT(config, seed).named_parameters()) for seed in (init.Nothing(), 0))
    assert empty.keys() == drawn.keys()
    for name, parameter in empty.items():
        assert parameter.shape == drawn[name].shape
        assert set(np.unique(parameter.data)) <= {0.0, 1.0}  # 1: the gains of the norms


def test_calculate_gain():
    """torch.nn.init.calculate_gain of PyTorch 2.13."""
    wanted = {
        ("linear", None): 1.0,
        ("conv2d", None): 1.0,
        ("conv_transpose1d", None): 1.0,
        ("sigmoid", None): 1.0,
        ("relu", None): 1.4142135623730951,
        ("tanh", None): 1.6666666666666667,
        ("leaky_relu", None): 1.4141428569978354,
        ("leaky_relu", 0.2): 1.3867504905630728,
        ("leaky_relu", 0): 1.4142135623730951,
        ("selu", None): 0.75,
    }
    for arguments, value in wanted.items():
        assert init.calculate_gain(*arguments) == pytest.approx(value, rel=1e-15), arguments
    with pytest.raises(ValueError, match="activation must be one of linear, sigmoid, tanh"):
        init.calculate_gain("gelu")
