import pytest

from gpulayers.lab.grid import AXES, Cell, default_grid, full_grid, only
from gpulayers.training.options import ConfigError


def test_the_full_grid_is_that_of_the_material():
    cells = full_grid()
    assert len(cells) == len(set(cells)) == 5 * 3 * 4 * 2 * 3
    assert AXES["activation"] == ("tanh", "relu", "leaky_relu", "prelu", "gelu")
    assert AXES["around"] == ("plain", "residual", "batchnorm", "layernorm")


def test_the_default_grid_is_a_part_with_every_word():
    cells = default_grid()
    assert len(cells) == len(set(cells)) < 60
    assert set(cells) < set(full_grid())
    assert {word for cell in cells for word in cell} == {word for words in AXES.values() for word in words}


def test_only():
    assert only(full_grid(), []) == full_grid()
    found = only(full_grid(), ["relu", "tanh", "he", "clip", "l2"])
    assert len(found) == 2 * 4
    assert found[0] == Cell("tanh", "he", "plain", "clip", "l2")
    assert str(found[0]) == "tanh, he, plain, clip, l2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rely"], "unknown word 'rely'; did you mean relu?"),
        (["zzzz"], "unknown word 'zzzz'; choose from tanh, relu"),
        (["gelu", "l1"], "--only gelu l1: no combination of this grid has all of that; try --full"),
    ],
)
def test_wrong_words(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        only(default_grid(), words)
