import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.log_softmax import LogSoftmax
from gpulayers.layers.softmax import Softmax

KINDS = [Softmax, LogSoftmax]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [-1, 0, 1, 2, -3])
def test_contract(kind, axis, rng):
    check_layer(lambda: kind(axis), rng.normal(0, 2, (3, 1, 7)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 1023), (0, 3), (2, 0, 3), (2, 0)])
def test_shapes(kind, shape, rng):
    check_layer(kind, rng.normal(size=shape))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axis_is_the_one_that_sums_to_1(axis, rng):
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    y = Softmax(axis)(x)
    assert np.allclose(y.sum(axis=axis), 1)
    assert np.allclose(np.exp(LogSoftmax(axis)(x)), y)


def test_worked_numbers():
    assert np.allclose(Softmax()(np.array([2, 1, 0.1])), [0.6590, 0.2424, 0.0986], atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_views(kind, rng):
    x = rng.normal(size=(6, 8, 5)).astype(np.float32)
    dy = rng.normal(size=(5, 8, 3)).astype(np.float32)
    y, saved = kind().forward(x.T[:, :, ::2])
    dx = kind().backward(dy, saved)
    y2, saved = kind().forward(np.ascontiguousarray(x.T[:, :, ::2]))
    assert np.array_equal(y, y2)
    assert np.array_equal(dx, kind().backward(np.asfortranarray(dy), saved))


@pytest.mark.parametrize("kind", KINDS)
def test_refusals(kind):
    with pytest.raises(TypeError, match=f"{kind.__name__} takes a floating input, got int64"):
        kind()(np.array([1, 2]))
    with pytest.raises(ValueError, match=r"axis 2, which an input of shape \(2, 3\) does not have"):
        kind(2)(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"takes an input with at least one axis, got shape \(\)"):
        kind()(np.array(1.0))
