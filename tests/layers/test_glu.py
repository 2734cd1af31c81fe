import ml_dtypes
import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.gelu import GELU
from gpulayers.layers.glu import GEGLU, GLU, SwiGLU
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU

ALL = {"glu": GLU, "geglu": GEGLU, "geglu_tanh": lambda axis=-1: GEGLU(axis, "tanh"), "swiglu": SwiGLU}
GATES = {"glu": Sigmoid, "geglu": GELU, "geglu_tanh": lambda: GELU("tanh"), "swiglu": SiLU}
every = pytest.mark.parametrize("name", ALL)


@every
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2,), 0), ((3, 2), -1), ((2, 3, 10), -1), ((2, 6, 5), 1), ((4, 3, 5), 0), ((0, 4), 1), ((3, 0), 1), ((0, 4), 0)],
)
def test_contract(name, shape, axis, rng):
    check_layer(lambda: ALL[name](axis), rng.normal(0, 2, shape))


@every
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_is_the_product_of_the_halves(name, axis, rng):
    x = rng.normal(0, 2, (4, 6, 8))
    a, b = np.split(x, 2, axis)
    layer, gate = ALL[name](axis), GATES[name]()
    y, saved = layer.forward(x)
    g, kept = gate.forward(b)
    assert np.allclose(y, a * g, rtol=1e-12)
    dy = rng.normal(size=y.shape)
    db = gate.backward(dy * a, kept)
    assert np.allclose(layer.backward(dy, saved), np.concatenate([dy * g, db], axis), rtol=1e-12, atol=1e-15)


@every
def test_views(name, rng):
    x, dy = rng.normal(size=(6, 5, 4)).astype(np.float32), rng.normal(size=(2, 5, 6)).astype(np.float32)
    layer = ALL[name](0)
    y, saved = layer.forward(x.T)
    dense, dense_saved = layer.forward(np.ascontiguousarray(x.T))
    assert np.array_equal(y, dense)
    assert np.array_equal(layer.backward(np.asfortranarray(dy), saved), layer.backward(dy, dense_saved))


@every
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype, rng):
    """A product of 300 and 1/3 would lose a digit if the gate were rounded first."""
    x = rng.normal(0, 2, (3, 40)).astype(dtype)
    exact, found = ALL[name]()(x.astype(np.float32)), ALL[name]()(x)
    assert found.dtype == x.dtype
    rounding = 2**-11 if dtype == "float16" else 2**-8
    assert np.allclose(found.astype(np.float32), exact, rtol=1.01 * rounding, atol=3e-8)


@every
def test_what_is_refused(name):
    kind = {"glu": "GLU", "swiglu": "SwiGLU"}.get(name, "GEGLU")
    with pytest.raises(ValueError, match=rf"{kind} halves axis -1, so its size must be even, got .* \(3, 5\)"):
        ALL[name]()(np.zeros((3, 5)))
    with pytest.raises(ValueError, match=rf"{kind} works along axis 2, which an input of shape \(3, 5\) does not have"):
        ALL[name](2)(np.zeros((3, 5)))
    with pytest.raises(TypeError, match=f"{kind} takes a floating input, got int64"):
        ALL[name]()(np.zeros(4, np.int64))
    with pytest.raises(TypeError, match=f"{kind}: axis must be an integer, got 0.5"):
        ALL[name](0.5)
    _, saved = ALL[name]().forward(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=rf"{kind}.backward takes a gradient of shape \(3, 2\), got \(3, 4\)"):
        ALL[name]().backward(np.zeros((3, 4)), saved)


def test_approximate():
    with pytest.raises(ValueError, match="GEGLU: approximate must be one of none, tanh, got 'erf'"):
        GEGLU(approximate="erf")
