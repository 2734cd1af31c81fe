import numpy as np
import pytest
from contract import check_layer
from devices import DEVICES
from tolerances import assert_close

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.layers.groupnorm import GroupNorm
from gpulayers.layers.layernorm import LayerNorm

everywhere = pytest.mark.parametrize("device", ["numpy", *DEVICES])


@pytest.mark.parametrize(
    ("shape", "groups", "options"),
    [
        ((3, 5, 6), 2, {}),
        ((3, 6, 5), 3, {"axis": 1}),
        ((2, 6, 3, 5), 6, {"axis": -3}),
        ((2, 3, 7, 5), 7, {"axis": 2, "eps": 0.1}),
        ((5, 8), 2, {}),
        ((4, 1023), 3, {}),
        ((7, 4, 3), 1, {"axis": 1, "affine": False}),
        ((0, 4, 6), 2, {}),
        ((3, 0, 6), 2, {}),
    ],
)
def test_contract(shape, groups, options, rng):
    channels = shape[options.get("axis", -1)]
    check_layer(lambda: GroupNorm(groups, channels, **options), rng.uniform(-2, 4, shape))


def test_one_value_a_group_gives_the_bias(rng):
    """As a LayerNorm of one column: nothing is left of x - mean."""
    layer = GroupNorm(4, 4)
    layer.bias.data[...] = [1, 2, 3, 4]
    y, saved = layer.forward(rng.normal(size=(2, 4)).astype(np.float32))
    assert y.tolist() == [[1, 2, 3, 4]] * 2
    assert not layer.backward(np.ones_like(y), saved).any()
    assert not layer.weight.grad.any()
    assert layer.bias.grad.tolist() == [2] * 4


@everywhere
def test_one_group_of_vectors_is_layernorm(device, rng):
    x, dy = (gl.to_device(a, device) for a in rng.normal(3, 2, (2, 5, 12)).astype(np.float32))
    group, layer = GroupNorm(1, 12).to(device), LayerNorm(12).to(device)
    for one in (group, layer):
        one.weight.data[...] = gl.to_device(np.linspace(-1, 2, 12, dtype=np.float32), device)
    found = []
    for one in (group, layer):
        y, saved = one.forward(x)
        found.append([y, one.backward(dy, saved), one.weight.grad, one.bias.grad])
    for a, b in zip(*found, strict=True):
        assert_close(gl.to_numpy(a), gl.to_numpy(b))


def test_channels_last_are_channels_first_moved(rng):
    x, dy = rng.normal(size=(2, 3, 4, 5, 6)).astype(np.float32)
    last, first = GroupNorm(2, 6), GroupNorm(2, 6, axis=1)
    y, saved = last.forward(x)
    y_first, saved_first = first.forward(np.moveaxis(x, -1, 1))
    assert_close(np.moveaxis(y_first, 1, -1), y)
    assert_close(np.moveaxis(first.backward(np.moveaxis(dy, -1, 1), saved_first), 1, -1), last.backward(dy, saved))
    assert_close(first.weight.grad, last.weight.grad)


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_h20_a_large_mean_does_not_cancel(mean):
    """burn-rs #5607, pytorch PR #40308; the kernel's own: test_groupnorm_kernel.py."""
    x = (mean + np.array([0, 0.5, 1, 1.5])).astype(np.float32).reshape(1, 2, 2)
    assert_close(GroupNorm(1, 2, axis=1)(x).ravel(), np.array([-1.3416193, -0.4472064, 0.4472064, 1.3416193]))


def test_no_sample_depends_on_another(rng):
    layer, x = GroupNorm(2, 4), rng.normal(size=(3, 5, 4)).astype(np.float32)
    assert np.array_equal(layer(x)[1:2], layer(x[1:2]))
    x[0] = np.nan
    assert np.isfinite(layer(x)[1:]).all()


def test_forward_is_one_launch_on_a_gpu(rng):
    layer = GroupNorm(2, 6, axis=1).to("emulated")
    x = gl.to_device(rng.normal(size=(2, 6, 3, 5)).astype(np.float32), "emulated")
    with record_launches() as launches:
        layer(x)
    assert [one.kernel for one in launches] == ["groupnorm"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision(dtype, rng):
    layer = GroupNorm(2, 6, dtype=dtype)
    x = rng.normal(300, 1, (2, 3, 6)).astype(np.float32).astype(dtype)
    y, saved = layer.forward(x)
    assert y.dtype == layer.backward(y, saved).dtype == np.dtype(dtype)
    assert saved.mean.dtype == saved.var.dtype == np.float32


def test_names_in_a_checkpoint():
    assert [(name, a.shape) for name, a in GroupNorm(2, 4).state_dict().items()] == [("weight", (4,)), ("bias", (4,))]
    assert GroupNorm(2, 4, affine=False).state_dict() == {}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GroupNorm(3, 8), "GroupNorm: num_groups must divide num_channels, got 3 for 8"),
        (lambda: GroupNorm(0, 8), "GroupNorm: num_groups must be at least 1, got 0"),
        (lambda: GroupNorm(2, 8, eps=-1), "GroupNorm: eps must be 0 or more, got -1"),
        (
            lambda: GroupNorm(2, 4)(np.zeros((2, 3), np.float32)),
            "GroupNorm takes an input with a batch, at least 2 axes and 4 channels on axis -1, got (2, 3)",
        ),
        (
            lambda: GroupNorm(2, 4, axis=0)(np.zeros((4, 3), np.float32)),
            "GroupNorm takes an input with a batch, at least 2 axes and 4 channels on axis 0, got (4, 3)",
        ),
        (
            lambda: GroupNorm(2, 4)(np.zeros(4, np.float32)),
            "GroupNorm takes an input with a batch, at least 2 axes and 4 channels on axis -1, got (4,)",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert str(caught.value) == sentence


def test_wrong_dtypes_and_gradients():
    with pytest.raises(TypeError, match="GroupNorm has float32 parameters and got a float64 input"):
        GroupNorm(2, 4)(np.zeros((2, 4)))
    with pytest.raises(TypeError, match="GroupNorm takes a floating input, got int64"):
        GroupNorm(2, 4, affine=False)(np.zeros((2, 4), np.int64))
    with pytest.raises(TypeError, match=r"GroupNorm: num_groups must be an integer, got 2\.0"):
        GroupNorm(2.0, 4)
    layer = GroupNorm(2, 4)
    _, saved = layer.forward(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"GroupNorm\.backward takes a gradient of shape \(2, 4\), got \(1, 4\)"):
        layer.backward(np.zeros((1, 4), np.float32), saved)
