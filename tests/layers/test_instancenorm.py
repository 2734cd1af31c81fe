import numpy as np
import pytest
from contract import check_layer
from devices import DEVICES
from tolerances import assert_close

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.layers.instancenorm import InstanceNorm
from gpulayers.layers.recompute import Recompute
from gpulayers.layers.sequential import Sequential
from gpulayers.optim import SGD, AdamW

TRAIN = gl.Train()
TRACKED = {"affine": True, "track_running_stats": True}
everywhere = pytest.mark.parametrize("device", ["numpy", *DEVICES])


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 5, 6), {}),
        ((3, 6, 5), {"axis": 1, **TRACKED}),
        ((2, 3, 4, 5), {"axis": -3, "affine": True}),
        ((2, 3, 2, 5), {"track_running_stats": True}),
        ((2, 1023, 3), {"momentum": None, **TRACKED}),
        ((0, 4, 3), TRACKED),
        ((3, 0, 4), TRACKED),
    ],
)
@pytest.mark.parametrize("train", [TRAIN, None], ids=["training", "evaluation"])
def test_contract(shape, options, train, rng):
    features = shape[options.get("axis", -1)]
    check_layer(lambda: InstanceNorm(features, **options), rng.uniform(-2, 4, shape), train=train)


def test_each_channel_of_each_sample_alone(rng):
    x = rng.normal(5, 3, (3, 7, 4)).astype(np.float32)
    y = InstanceNorm(4)(x)
    assert np.allclose(y.mean(axis=1), 0, atol=1e-6)
    assert np.allclose(y.var(axis=1), 1, atol=1e-4)
    x[0, :, 2] = np.nan
    assert np.isnan(InstanceNorm(4)(x)).any(axis=1).tolist() == [[False, False, True, False], [False] * 4, [False] * 4]


@everywhere
def test_h21_the_unbiased_variance_is_stored(device):
    """pytorch #60528 for instances: [0, 2] and [4, 8] as samples of one channel, normalised by their own variances."""
    model = InstanceNorm(1, **TRACKED).to(device)
    optimizer = SGD(model, lr=0.0)
    x = gl.to_device(np.array([[[0], [2]], [[4], [8]]], np.float32), device)
    y, saved = model.forward(x, train=TRAIN)
    model.backward(y * 0, saved)
    optimizer.step()
    assert_close(gl.to_numpy(y)[:, :, 0], np.array([[-0.9999950, 0.9999950], [-0.99999875, 0.99999875]]))
    state = model.state_dict()
    assert_close(state["running_mean"], np.array([0.1 * (1 + 6) / 2]))
    assert_close(state["running_var"], np.array([0.9 + 0.1 * (2 + 8) / 2]))
    assert state["num_batches_tracked"] == 1
    there = (0 - 0.35) / np.sqrt(1.4 + 1e-5)
    assert_close(gl.to_numpy(model(x))[0, 0], np.array([there]))


def test_a_skipped_step_changes_no_bit(rng):
    model = InstanceNorm(4, **TRACKED)
    optimizer = AdamW(model)
    for bad in (False, True, False):
        before = model.state_dict()
        y, saved = model.forward(rng.normal(2, 3, (3, 5, 4)).astype(np.float32), TRAIN)
        assert all(np.array_equal(a, before[name]) for name, a in model.state_dict().items())
        dy = y * 0 + 1
        if bad:
            dy[0, 0] = np.nan
        model.backward(dy, saved)
        optimizer.step()
        if bad:
            assert all(a.tobytes() == before[name].tobytes() for name, a in model.state_dict().items())
    assert (optimizer.applied, optimizer.skipped) == (2, 1)
    assert model.state_dict()["num_batches_tracked"] == 2


def test_one_launch_a_pass_and_one_an_update(rng):
    layer = InstanceNorm(6, axis=1, **TRACKED).to("emulated")
    x = gl.to_device(rng.normal(size=(2, 6, 3, 5)).astype(np.float32), "emulated")
    with record_launches() as launches:
        y, saved = layer.forward(x, TRAIN)
        layer.backward(y, saved)
        layer.commit()
    assert [one.kernel for one in launches] == ["groupnorm", "groupnorm_backward", "sum_partials", "batchnorm_update"]


def test_recompute_counts_once_and_twice_used_counts_twice(rng):
    x = rng.normal(size=(3, 5, 4)).astype(np.float32)
    inner = InstanceNorm(4, **TRACKED)
    for model, count in ((Recompute(inner), 1), (Sequential(inner, inner), 3)):
        y, saved = model.forward(x, train=TRAIN)
        model.backward(y, saved)
        model.commit()
        assert inner.state_dict()["num_batches_tracked"] == count


def test_evaluation_without_tracking_is_training(rng):
    layer, x = InstanceNorm(4), rng.normal(size=(3, 5, 4)).astype(np.float32)
    assert np.array_equal(layer(x), layer.forward(x, TRAIN)[0])
    assert layer.state_dict() == {}


def test_one_position():
    x = np.zeros((2, 1, 3), np.float32)
    with pytest.raises(ValueError, match=r"statistics of a sample need 2 positions, got an input \(2, 1, 3\)"):
        InstanceNorm(3).forward(x, TRAIN)
    assert InstanceNorm(3, **TRACKED)(x).shape == x.shape  # running statistics will do


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda: InstanceNorm(0), ValueError, "InstanceNorm: num_features must be at least 1, got 0"),
        (lambda: InstanceNorm(3, momentum=2), ValueError, "InstanceNorm: momentum must be in 0..1, got 2"),
        (
            lambda: InstanceNorm(3)(np.zeros((2, 3), np.float32)),
            ValueError,
            "InstanceNorm takes an input with a batch, at least 3 axes and 3 channels on axis -1, got (2, 3)",
        ),
        (
            lambda: InstanceNorm(3, affine=True)(np.zeros((2, 4, 3))),
            TypeError,
            "InstanceNorm has float32 parameters and got a float64 input; "
            "convert one of them: x.astype('float32') or layer.to(dtype='float64')",
        ),
        (
            lambda: InstanceNorm(3, track_running_stats=True)(np.zeros((2, 4, 3))),
            TypeError,
            "InstanceNorm has float32 statistics and got a float64 input; convert one of them",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(make, kind, sentence):
    with pytest.raises(kind, match=r".") as caught:
        make()
    assert str(caught.value) == sentence
