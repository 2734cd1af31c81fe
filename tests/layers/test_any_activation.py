"""Every activation on whatever a person may give it: shapes, strides, dtypes, by chance."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import assert_close
from watch import Watch

import gpulayers as gl
from gpulayers.gradcheck import gradcheck

LAYERS = {
    "ReLU": gl.ReLU,
    "ReLU6": gl.ReLU6,
    "LeakyReLU": lambda: gl.LeakyReLU(0.25),
    "PReLU": gl.PReLU,
    "Threshold": lambda: gl.Threshold(0.25, -1),
    "Hardtanh": lambda: gl.Hardtanh(-0.5, 1),
    "Hardsigmoid": gl.Hardsigmoid,
    "Hardswish": gl.Hardswish,
    "ELU": lambda: gl.ELU(0.5),
    "SELU": gl.SELU,
    "CELU": lambda: gl.CELU(0.5),
    "Sigmoid": gl.Sigmoid,
    "LogSigmoid": gl.LogSigmoid,
    "Softplus": lambda: gl.Softplus(2, 4),
    "Tanh": gl.Tanh,
    "Softsign": gl.Softsign,
    "GELU": gl.GELU,
    "GELU tanh": lambda: gl.GELU("tanh"),
    "SiLU": gl.SiLU,
    "Mish": gl.Mish,
    "GLU": gl.GLU,
    "GEGLU": gl.GEGLU,
    "SwiGLU": gl.SwiGLU,
    "Softmax": gl.Softmax,
    "LogSoftmax": gl.LogSoftmax,
    "Softmin": gl.Softmin,
}
WITH_AXIS = (gl.GLU, gl.Softmax, gl.LogSoftmax, gl.Softmin)
LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "reversed": lambda x: x[..., ::-1],
    "every second": lambda x: np.repeat(x, 2, axis=0)[::2],
}


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(list(LAYERS)),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    layout=st.sampled_from(list(LAYOUTS)),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_call(name, shape, axis, layout, dtype, seed):
    """Each dtype gives what float64 gives of the same numbers, whatever the layout; no input is written; float32 makes
    no float64 array; and the gradient is that of finite differences."""
    rng, layer = np.random.default_rng(seed), LAYERS[name]()
    if isinstance(layer, WITH_AXIS):
        layer.axis = axis % len(shape)
    if isinstance(layer, gl.GLU):
        shape[layer.axis] *= 2
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = LAYOUTS[layout](rng.normal(0, 2, shape).round(1).astype(kind) + kind.type(0.04))  # no kink is near x.x4
    before = x.copy()
    layer.to(dtype=kind)
    with Watch() as watch:
        y, saved = layer.forward(x)
        dy = LAYOUTS[layout](rng.normal(size=y.shape).astype(kind))
        dx = layer.backward(dy, saved)
        assert np.array_equal(layer(x), y)
    assert y.dtype == dx.dtype == kind
    assert dx.shape == x.shape
    assert np.array_equal(before, x)
    assert dtype != "float32" or not watch.found

    layer.to(dtype="float64")
    wide = x.astype(np.float64)
    exact, saved = layer.forward(wide)
    factor, scale = (100, 0.0) if dtype == "float64" else (5, float(np.abs(dy.astype(np.float64)).max(initial=0)))
    assert_close(y.astype(np.float64), exact, dtype, factor=factor)
    assert_close(dx.astype(np.float64), layer.backward(dy.astype(np.float64), saved), dtype, factor, scale)
    if x.size and dtype == "float64":
        gradcheck(layer, wide, tolerance=1e-6)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("wrong", [None, 3, [1.0], np.arange(4), np.array(["a", "b"]), np.zeros(2, bool)])
def test_what_is_no_floating_array_is_refused(name, wrong):
    """One sentence with the name of the layer."""
    with pytest.raises(TypeError, match=rf"^{name.split()[0]} takes a floating input, got .+"):
        LAYERS[name]()(wrong)


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_of_another_shape_is_refused(name):
    layer = LAYERS[name]()
    y, saved = layer.forward(np.ones((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"\(2, [24]\)"):
        layer.backward(np.ones((1, y.shape[1]), np.float32), saved)
