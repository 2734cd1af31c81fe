import numpy as np
import pytest
from devices import on_devices, refuse_waiting

import gpulayers as gl
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.sequential import Sequential
from gpulayers.ops.dropout import dropout
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


@on_devices
def test_a_step_in_device_memory_draws_the_bits_of_that_step(device, rng, monkeypatch):
    """A captured graph sees one `Train` in all its replays: new bits come from the number that the kernels read."""
    x = gl.to_device(rng.normal(size=(2, 3, 8)).astype(np.float32), device)
    layer = Sequential(Dropout(0.5), MultiHeadAttention(8, 2, dropout=0.5, rng=0), Dropout(0.5)).to(device)
    step = gl.to_device(np.array([5], np.uint64), device)
    train = Train(seed=3, step=step, first_sample=1)
    found = []
    with monkeypatch.context() as patch:
        layer.forward(x, train=train.snapshot())  # compiles
        if device == "emulated":
            refuse_waiting(patch)
        for _ in range(2):
            y, saved = layer.forward(x, train=train.snapshot())
            found.append((y, layer.backward(y, saved)))
            step += np.uint64(1)
    for k, (y, dx) in enumerate(found):
        wanted, saved = layer.forward(x, train=Train(seed=3, step=5 + k, first_sample=1))
        assert np.array_equal(y.get(), wanted.get())
        assert np.array_equal(dx.get(), layer.backward(wanted, saved).get())
    assert not np.array_equal(found[0][0].get(), found[1][0].get())
    assert np.array_equal(
        dropout.reference(x[0], Key(0, step, 0, 0), 0.5).get(), dropout(x[0], Key(0, 7, 0, 0), 0.5).get()
    )


def test_a_step_in_device_memory_has_one_type():
    for wrong in (np.array([1]), np.array(1, np.uint64), np.ones(2, np.uint64)):
        with pytest.raises(TypeError, match=r"Train: a step on a device must be uint64 of shape \(1,\), got "):
            Train(step=gl.to_device(wrong, "emulated"))
    step = gl.to_device(np.array([1], np.uint64), "emulated")
    assert repr(Train(step=step)) == "Train(seed=0, step=<on the device>, first_sample=0, position=0)"
    with pytest.raises(TypeError, match="meet in one call"):
        dropout.cuda(gl.to_device(np.ones((1, 8), np.float32), "emulated"), Key(0, np.array([1], np.uint64), 0, 0), 0.5)


def test_integers_only():
    """Half a seed would be cut to 0 in silence, and a NumPy integer overflows where the key is put together."""
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        Train(seed=0.5)
    assert type(Train(step=np.int64(3)).step) is int
