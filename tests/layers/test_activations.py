import ml_dtypes
import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.activation import (
    CELU,
    ELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LogSigmoid,
    Mish,
    ReLU6,
    Softplus,
    Softsign,
    Threshold,
)
from gpulayers.layers.gelu import GELU
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.prelu import PReLU
from gpulayers.layers.relu import ReLU
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU
from gpulayers.layers.tanh import Tanh

ALL = {
    "relu": ReLU,
    "leaky_relu": LeakyReLU,
    "leaky_relu_steep": lambda: LeakyReLU(1.5),
    "leaky_relu_falling": lambda: LeakyReLU(-0.5),
    "prelu": PReLU,
    "gelu": GELU,
    "gelu_tanh": lambda: GELU("tanh"),
    "silu": SiLU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "relu6": ReLU6,
    "threshold": lambda: Threshold(0.25, -7),
    "hardtanh": Hardtanh,
    "hardtanh_off_centre": lambda: Hardtanh(-0.5, 2),
    "hardsigmoid": Hardsigmoid,
    "hardswish": Hardswish,
    "softsign": Softsign,
    "elu": ELU,
    "elu_low": lambda: ELU(0.25),
    "selu": SELU,
    "celu": CELU,
    "celu_low": lambda: CELU(0.25),
    "softplus": Softplus,
    "softplus_steep": lambda: Softplus(beta=4, threshold=6),
    "logsigmoid": LogSigmoid,
    "mish": Mish,
}
KINKS = (-3, -1, -0.5, 0, 0.25, 1, 1.5, 2, 3, 6)  # a finite difference across one is no derivative
every = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())


@every
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 3, 5), (0, 4), (4, 0), (41, 1023)])
def test_contract(make, shape, rng):
    x = np.asarray(rng.normal(0, 2, shape))
    for kink in KINKS:
        x = np.where(np.abs(x - kink) < 0.01, kink + 0.125, x)
    check_layer(make, x)


@every
def test_transposed_view(make, rng):
    x = rng.normal(size=(5, 4, 3)).astype(np.float32)
    dy = rng.normal(size=(3, 4, 5)).astype(np.float32)
    layer = make()
    y, saved = layer.forward(x.T)
    contiguous_y, contiguous_saved = layer.forward(np.ascontiguousarray(x.T))
    assert np.array_equal(y, contiguous_y)
    assert np.array_equal(layer.backward(np.asfortranarray(dy), saved), layer.backward(dy, contiguous_saved))
    assert np.array_equal(layer.backward(dy[:, ::-1], saved), layer.backward(dy[:, ::-1].copy(), contiguous_saved))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_values_do_not_overflow(make, dtype):
    """Warnings are errors, so this sees an overflow that the value would hide."""
    x = np.array([-1e37, -1e20, -1e4, -100, -89, -20, 20, 89, 100, 1e4, 1e20, 1e37], dtype)
    layer = make().to(dtype=dtype)
    y, saved = layer.forward(x)
    dx = layer.backward(np.ones_like(x), saved)
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    if not isinstance(layer, LeakyReLU | PReLU | LogSigmoid | Softsign):
        assert np.allclose(y[:5], layer(np.array([-1e3], dtype)), atol=1e-30)  # the left end is flat
        assert np.allclose(dx[:5], 0, atol=1e-30)
    if isinstance(layer, GELU | SiLU | ReLU | Hardswish | ELU | CELU | Softplus | Mish | Threshold):
        assert np.array_equal(y[-5:], x[-5:])
        assert np.array_equal(dx[-5:], np.ones(5))


@every
def test_nan_stays_nan(make):
    layer = make()
    x = np.full(9, 0.5, np.float32)
    x[4] = np.nan
    assert np.isnan(layer(x)).tolist() == np.isnan(x).tolist()
    saved = layer.forward(np.full(9, 0.5, np.float32))[1]
    assert np.isnan(layer.backward(x, saved)).tolist() == np.isnan(x).tolist()


@every
def test_integers_are_refused_in_one_sentence(make):
    with pytest.raises(TypeError, match=r"\w+ takes a floating input, got int64"):
        make()(np.arange(3))
    with pytest.raises(ValueError, match=r"\w+ takes an input with at least one axis, got shape \(\)"):
        make()(np.zeros((), np.float32))


@pytest.mark.parametrize(
    ("make", "x", "y", "slope"),
    [
        (ReLU, [-2, 0, 3], [0, 0, 3], [0, 0, 1]),
        (LeakyReLU, [-2, 0, 3], [-0.02, 0, 3], [0.01, 0.01, 1]),
        (lambda: LeakyReLU(0.2), [-2, 0, 3], [-0.4, 0, 3], [0.2, 0.2, 1]),
        (PReLU, [-2, 0, 3], [-0.5, 0, 3], [0.25, 0.25, 1]),
        (GELU, [-1, 0, 1], [-0.15865525, 0, 0.84134475], [-0.08331547, 0.5, 1.08331547]),
        (lambda: GELU("tanh"), [-1, 0, 1], [-0.15880801, 0, 0.84119199], [-0.08296408, 0.5, 1.08296408]),
        (SiLU, [-1, 0, 1], [-0.26894142, 0, 0.73105858], [0.07232949, 0.5, 0.92767051]),
        (Tanh, [-1, 0, 1], [-0.76159416, 0, 0.76159416], [0.41997434, 1, 0.41997434]),
        (Sigmoid, [-1, 0, 1], [0.26894142, 0.5, 0.73105858], [0.19661193, 0.25, 0.19661193]),
        (ReLU6, [-2, 3, 7], [0, 3, 6], [0, 1, 0]),
        (lambda: Threshold(1, 20), [-1, 1, 2], [20, 20, 2], [0, 0, 1]),
        (Hardtanh, [-2, 0.5, 2], [-1, 0.5, 1], [0, 1, 0]),
        (Hardsigmoid, [-4, 0, 1.5], [0, 0.5, 0.75], [0, 1 / 6, 1 / 6]),
        (Hardswish, [-1.5, 1, 4], [-0.375, 2 / 3, 4], [0, 5 / 6, 1]),
        (Softsign, [-1, 0, 3], [-0.5, 0, 0.75], [0.25, 1, 0.0625]),
        (ELU, [-1, 0, 1], [-0.63212056, 0, 1], [0.36787944, 1, 1]),
        (SELU, [-1, 0, 1], [-1.11133074, 0, 1.05070099], [0.64676860, 1.75809934, 1.05070099]),
        (lambda: CELU(0.5), [-1, 0, 1], [-0.43233236, 0, 1], [0.13533528, 1, 1]),
        (Softplus, [-1, 0, 1], [0.31326169, 0.69314718, 1.31326169], [0.26894142, 0.5, 0.73105858]),
        (lambda: Softplus(2, 3), [-1, 0, 2], [0.06346401, 0.34657359, 2], [0.11920292, 0.5, 1]),
        (LogSigmoid, [-1, 0, 1], [-1.31326169, -0.69314718, -0.31326169], [0.73105858, 0.5, 0.26894142]),
        (Mish, [-1, 0, 1], [-0.30340146, 0, 0.86509839], [0.05921676, 0.6, 1.04903622]),
    ],
)
def test_worked_numbers(make, x, y, slope):
    for dtype, tolerance in (("float64", 1e-8), ("float32", 2e-7)):
        layer = make().to(dtype=dtype)
        found, saved = layer.forward(np.array(x, dtype))
        assert np.allclose(found, y, rtol=0, atol=tolerance)
        assert np.allclose(layer.backward(np.ones(3, dtype), saved), slope, rtol=0, atol=tolerance)


def test_relu_hides_an_infinite_gradient_without_nan():
    _, saved = ReLU().forward(np.array([-1, 1], np.float32))
    assert ReLU().backward(np.array([np.inf, np.inf], np.float32), saved).tolist() == [0, np.inf]


@pytest.mark.parametrize("shape", [(1, 3), (2, 5, 3), (0, 3), (20011, 3)])
def test_prelu_has_a_slope_for_each_channel(shape, rng):
    x = rng.normal(size=shape)
    x = np.where(np.abs(x) < 0.01, 0.5, x)
    check_layer(lambda: PReLU(3), x)
    layer = PReLU(3)
    layer.weight.data[:] = [0.5, -2, 1]
    assert layer(np.array([[-1, -1, -1], [1, 1, 1]], np.float32)).tolist() == [[-0.5, 2, -1], [1, 1, 1]]


def test_prelu_slope_gradient():
    layer = PReLU(2)
    _, saved = layer.forward(np.array([[-1, 2], [-3, -4]], np.float32))
    layer.backward(np.array([[10, 20], [30, 40]], np.float32), saved)
    assert layer.weight.grad.tolist() == [-100, -160]


def test_wrong_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="GELU: approximate must be 'none' or 'tanh', got 'erf'"):
        GELU("erf")
    with pytest.raises(ValueError, match="PReLU: num_parameters must be at least 1, got 0"):
        PReLU(0)
    with pytest.raises(ValueError, match="Hardtanh: min_val must be below max_val, got 2 and 1"):
        Hardtanh(2, 1)
    for make, wrong in ((CELU, "CELU: alpha must not be 0, got 0"), (Softplus, "Softplus: beta must not be 0, got 0")):
        with pytest.raises(ValueError, match=wrong):
            make(0)
    with pytest.raises(ValueError, match=r"Softplus: threshold must be in -3.4e\+38..3.4e\+38, got 1e\+300"):
        Softplus(threshold=1e300)
    with pytest.raises(ValueError, match="CELU: alpha must not be 0, got 1e-40"):  # to a GPU it is
        CELU(1e-40)
    for make, name in ((CELU, "alpha"), (ELU, "alpha"), (Softplus, "beta"), (Hardtanh, "min_val")):
        with pytest.raises(ValueError, match=f"{make.__name__}: {name} must be finite, got nan"):
            make(np.nan)
        with pytest.raises(TypeError, match=f"{make.__name__}: {name} must be a number, got '1'"):
            make("1")
    with pytest.raises(TypeError, match="Threshold: value must be a number, got None"):
        Threshold(1, None)
    with pytest.raises(ValueError, match=r"PReLU takes an input of shape \(\.\.\., 3\), got \(3, 2\)"):
        PReLU(3)(np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match="PReLU has float32 parameters and got a float64 input"):
        PReLU()(np.zeros(2))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
@every
def test_half_precision_is_computed_in_float32(make, dtype, rng):
    dtype = np.dtype(dtype)
    x = rng.normal(0, 2, 50).astype(dtype)
    y = make().to(dtype=dtype)(x)
    exact = make()(x.astype(np.float32))
    assert y.dtype == dtype
    rounding = 2**-11 if dtype == np.float16 else 2**-8
    assert np.allclose(y.astype(np.float32), exact, rtol=1.01 * rounding, atol=3e-8)  # float16 ends at 6e-8
