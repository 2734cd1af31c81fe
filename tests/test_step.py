import numpy as np
import pytest

from gpulayers.step import Key, Train


def test_a_snapshot_draws_the_same_again():
    train = Train(seed=1, step=2)
    train.draw()
    snapshot = train.snapshot()
    keys = [train.draw(), train.draw()]
    assert [snapshot.draw(), snapshot.draw()] == keys == [Key(1, 2, 1, 0), Key(1, 2, 2, 0)]
    assert train.position == 3


def test_repr_says_where_it_is():
    assert repr(Train(1, 2, 3)) == "Train(seed=1, step=2, first_sample=3, position=0)"


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 1 << 64}, {"step": 1 << 40}, {"first_sample": -1}])
def test_ranges(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"Train: {name} must be in 0\.\.2\^"):
        Train(**options)


def test_integers_only():
    """Half a seed would be cut to 0 in silence, and a NumPy integer overflows where the key is put together."""
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        Train(seed=0.5)
    assert type(Train(step=np.int64(3)).step) is int
