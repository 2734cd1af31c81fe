import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.dropout import Dropout
from gpulayers.random import keep_threshold, random_bits
from gpulayers.step import Key, Train


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 3, 5), (0, 4), (4, 0), (41, 1023)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_contract(shape, p, rng):
    check_layer(lambda: Dropout(p), rng.normal(size=shape), train=Train(seed=3, step=7, first_sample=5))


def test_zeros_where_the_bits_say_so():
    y, _ = Dropout(0.25).forward(np.ones((5, 9), np.float32), Train(seed=3, step=2))
    bits = random_bits(Key(3, 2, 0, 0), 9, 5)
    assert np.array_equal(y, np.where(bits < keep_threshold(0.25), 0, np.float32(1 / 0.75)))


def test_share_and_mean():
    y, _ = Dropout(0.3).forward(np.ones((100, 1000), np.float32), Train())
    assert abs((y == 0).mean() - 0.3) < 0.005  # standard deviation 0.0014
    assert abs(y.mean() - 1) < 0.01
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}


def test_backward_drops_the_same_elements(rng):
    x, dy = rng.normal(size=(2, 6, 50)).astype(np.float32)
    layer = Dropout(0.5)
    y, saved = layer.forward(x, Train(seed=1))
    assert np.array_equal(layer.backward(dy, saved), np.where(y == 0, 0, 2 * dy))


def test_bits_do_not_depend_on_the_split(rng):
    x = rng.normal(size=(12, 3, 7)).astype(np.float32)
    whole, _ = Dropout().forward(x, Train(seed=9, step=4))
    for sizes in ([5, 7], [1] * 12, [11, 1]):
        parts, first = [], 0
        for size in sizes:
            train = Train(seed=9, step=4, first_sample=first)
            parts.append(Dropout().forward(x[first : first + size], train)[0])
            first += size
        assert np.array_equal(np.concatenate(parts), whole)


def test_layers_steps_and_seeds_draw_different_bits():
    x = np.ones((1, 1000), np.float32)
    train = Train(seed=1, step=1)
    layer = Dropout()
    draws = [layer.forward(x, t)[0] for t in (train, train, Train(seed=1, step=2), Train(seed=2, step=1))]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert 400 < (a == b).sum() < 600


def test_evaluation_and_p_0_are_the_identity(rng):
    x = rng.normal(size=(3, 4)).astype(np.float32)
    for layer, train in ((Dropout(), None), (Dropout(0), Train())):
        y, saved = layer.forward(x, train)
        assert y is x
        assert layer.backward(x, saved) is x


def test_nothing_is_drawn_without_dropout():
    train = Train()
    Dropout(0).forward(np.ones((1, 1), np.float32), train)
    assert train.position == 0


def test_p_1_gives_zeros_even_for_nan():
    layer = Dropout(1)
    x = np.array([[np.nan, np.inf, 1]], np.float32)
    y, saved = layer.forward(x, Train())
    assert y.tolist() == [[0, 0, 0]]
    assert layer.backward(x, saved).tolist() == [[0, 0, 0]]


def test_a_dropped_nan_or_inf_is_0_and_a_kept_one_stays():
    x = np.full((4, 100), np.nan, np.float32)
    x[2:] = np.inf
    y, _ = Dropout().forward(x, Train())
    kept = random_bits(Key(0, 0, 0, 0), 100, 4) >= keep_threshold(0.5)
    assert not y[~kept].any()
    assert not np.isfinite(y[kept]).any()


def test_a_p_that_rounds_to_1_needs_no_special_case():
    y, _ = Dropout(1 - 1e-12).forward(np.ones((2, 5), np.float32), Train())
    assert not y.any()


def test_transposed_view(rng):
    x = rng.normal(size=(4, 6)).astype(np.float32)
    y, _ = Dropout().forward(x.T, Train())
    assert np.array_equal(y, Dropout().forward(np.ascontiguousarray(x.T), Train())[0])


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_p_outside_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=r"Dropout: p must be in 0\.\.1, got"):
        Dropout(p)


def test_wrong_inputs_are_one_sentence():
    with pytest.raises(TypeError, match="Dropout takes a floating input, got int64"):
        Dropout()(np.arange(3))
    with pytest.raises(ValueError, match=r"Dropout takes an input with at least one axis, got shape \(\)"):
        Dropout().forward(np.ones((), np.float32), Train())
