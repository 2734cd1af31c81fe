import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.positions import LearnedPositions, SinusoidalPositions
from gpulayers.layers.rotary import Rotary

SHAPES = [(1, 1, 4), (2, 5, 4), (3, 7, 4), (0, 3, 4), (2, 0, 4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", [0, 2])
def test_contract(shape, start, rng):
    x = rng.normal(size=shape)
    check_layer(lambda: LearnedPositions(9, 4, rng=0), x, start=start)
    check_layer(lambda: SinusoidalPositions(4), x, start=start)
    check_layer(lambda: Rotary(4), x[:, :, None].repeat(3, axis=2), start=start)


def test_odd_dim(rng):
    check_layer(lambda: SinusoidalPositions(5), rng.normal(size=(2, 3, 5)))
    with pytest.raises(ValueError, match="dim must be even, got 5"):
        Rotary(5)


def test_learned_rows():
    layer = LearnedPositions(3, 2, rng=0)
    x = np.zeros((2, 2, 2), np.float32)
    y, saved = layer.forward(x)
    assert np.array_equal(y[1], layer.weight.data[:2])
    dy = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert np.array_equal(layer.backward(dy, saved), dy)
    assert layer.weight.grad.tolist() == [[4, 6], [8, 10], [0, 0]]
    layer.weight.trainable = False
    layer.backward(dy, saved)
    assert layer.weight.grad.tolist() == [[4, 6], [8, 10], [0, 0]]


def test_too_long_is_one_sentence():
    layer = LearnedPositions(3, 2, rng=0)
    with pytest.raises(ValueError, match=r"positions 0\.\.3 do not fit in a context of 3"):
        layer(np.zeros((1, 4, 2), np.float32))
    with pytest.raises(ValueError, match=r"positions 2\.\.3 do not fit in a context of 3"):
        layer(np.zeros((1, 2, 2), np.float32), start=2)


@pytest.mark.parametrize("layer", [LearnedPositions(3, 2, rng=0), SinusoidalPositions(2), Rotary(2)])
def test_a_negative_start_does_not_count_from_the_end(layer):
    shape = (1, 2, 1, 2) if isinstance(layer, Rotary) else (1, 2, 2)
    with pytest.raises(ValueError, match=r"-1"):
        layer(np.zeros(shape, np.float32), start=-1)


def test_sinusoids():
    """Vaswani et al. 2017, section 3.5."""
    y = SinusoidalPositions(4)(np.zeros((1, 300, 4)))
    t = np.arange(300)
    assert np.allclose(y[0], np.stack([np.sin(t), np.cos(t), np.sin(t / 100), np.cos(t / 100)], axis=1))
    assert SinusoidalPositions(4)(np.zeros((1, 3, 4), np.float32)).dtype == np.float32


def test_rotary_scores_depend_on_the_difference_of_positions(rng):
    layer = Rotary(8)
    q, k = rng.normal(size=(2, 1, 1, 1, 8))
    scores = [[float((layer(q, start=i) * layer(k, start=j)).sum()) for j in (i, i + 3)] for i in (0, 1, 10, 1000)]
    assert np.allclose(scores, scores[0], atol=1e-10)


@pytest.mark.parametrize("layer", [LearnedPositions(3, 2, rng=0), SinusoidalPositions(2)])
def test_wrong_shape_is_one_sentence(layer):
    with pytest.raises(ValueError, match=r"takes an input of shape \(B, T, 2\), got \(3, 2\)"):
        layer(np.zeros((3, 2), np.float32))


def test_integers_are_refused():
    with pytest.raises(TypeError, match="SinusoidalPositions takes a floating input, got int64"):
        SinusoidalPositions(2)(np.zeros((1, 3, 2), np.int64))
    with pytest.raises(TypeError, match="Rotary takes a floating input, got int64"):
        Rotary(2)(np.zeros((1, 3, 1, 2), np.int64))
