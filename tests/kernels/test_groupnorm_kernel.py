import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward

# Samples, channels, positions; groups. Channels of one position and of many, packs that straddle channels, rows of one
# warp and of several, one channel for all threads of a row.
SHAPES = [
    ((1, 1, 1), 1),
    ((2, 6, 5), 3),
    ((3, 8, 1), 2),
    ((2, 4, 33), 1),
    ((2, 3, 129), 3),
    ((9, 4, 8), 4),
    ((1, 66, 16), 2),
    ((2, 2, 1100), 2),
    ((1, 3, 1100), 1),
    ((1, 6, 400), 2),  # a warp for each channel, three to a row
]


def check_both(device, shape, groups, affine, rng, storage="float32"):
    x, dy = rng.normal(1, 2, (2, *shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32) if affine else (None, None)
    check_kernel(groupnorm, device, x, weight, bias, groups, 1e-5, storage=storage)
    mean, var = groupnorm.reference(x, weight, bias, groups, 1e-5)[1:]
    terms = np.abs(dy if weight is None else dy * weight[:, None]).max(initial=0) / np.sqrt(var.min(initial=1) + 1e-5)
    args = (dy, x, Exact(mean), Exact(var), weight, 1e-5)
    check_kernel(groupnorm_backward, device, *args, storage=storage, factor=3, scale=terms)


@on_devices
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_against_the_reference(device, shape, groups, rng):
    check_both(device, shape, groups, True, rng)


@on_devices
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "groups"), [SHAPES[1], SHAPES[3], SHAPES[6]])
def test_in_16_bits(device, storage, shape, groups, rng):
    check_both(device, shape, groups, True, rng, storage)


@on_devices
@pytest.mark.parametrize(("shape", "groups"), SHAPES[1:4])
def test_without_gain_and_bias(device, shape, groups, rng):
    check_both(device, shape, groups, False, rng)


@on_devices
def test_forward_is_one_launch(device, rng):
    x = gl.to_device(rng.normal(size=(3, 6, 40)).astype(np.float32), device)
    with record_launches() as launches:
        _, mean, var = groupnorm(x, None, None, 2, 1e-5)
        groupnorm_backward(x, x, mean, var, None, 1e-5)
    assert device != "emulated" or [one.kernel for one in launches] == [
        "groupnorm",
        "groupnorm_backward",
        "sum_partials",
    ]


@on_devices
@pytest.mark.parametrize(("shape", "groups"), [((0, 4, 3), 2), ((2, 4, 0), 2)])
def test_nothing(device, shape, groups):
    x = np.zeros(shape, np.float32)
    with record_launches() as launches:
        _, mean, var = check_kernel(groupnorm, device, x, None, None, groups, 1e-5)
        check_kernel(groupnorm_backward, device, x, x, Exact(mean.get()), Exact(var.get()), None, 1e-5)
    assert not launches


@on_devices
def test_views(device, rng):
    x, dy = (a.transpose(0, 2, 1) for a in rng.normal(size=(2, 3, 7, 6)).astype(np.float32))
    check_kernel(groupnorm, device, x, None, None, 3, 1e-5)
    mean, var = groupnorm.reference(x, None, None, 3, 1e-5)[1:]
    check_kernel(groupnorm_backward, device, dy, x, Exact(mean), Exact(var), None, 1e-5, factor=3)


@on_devices
@in_storage
def test_at_every_alignment(device, storage, rng):
    """Rows and channels of a multiple of 16 bytes, in memory that does not begin on one: either array, or both."""
    x, dy = (gl.to_device(a, device).astype(storage) for a in rng.normal(size=(2, 4 * 16 + 1)).astype(np.float32))
    x, dy = x[1:].reshape(2, 2, 16), dy[1:].reshape(2, 2, 16)
    found = []
    for a, d in ((x.copy(), dy.copy()), (x, dy), (x, dy.copy()), (x.copy(), dy)):
        y, mean, var = groupnorm(a, None, None, 1, 1e-5)
        found.append([y, mean, var, *groupnorm_backward(d, a, mean, var, None, 1e-5)])
    for results in found[1:]:
        for one, other in zip(results, found[0], strict=True):
            assert np.array_equal(one.get(), other.get())


@on_devices
@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(device, mean, rng):
    """burn-rs #5607, pytorch PR #40308; and a long row, whose plain sum would be off by more than its spread."""
    x = np.tile((mean + np.array([0, 0.5, 1, 1.5])).astype(np.float32), (1, 2, 1))
    y, found, var = check_kernel(groupnorm, device, x, None, None, 1, 1e-5)
    assert y.get()[0, 1] == pytest.approx(np.array([-1.3416193, -0.4472064, 0.4472064, 1.3416193]), rel=1e-6)
    assert (found.get().item(), var.get().item()) == (mean + 0.75, 0.3125)
    long = (mean + rng.normal(size=(1, 3, 5000))).astype(np.float32)
    check_kernel(groupnorm, device, long, None, None, 1, 1e-5)


@on_devices
def test_bad_numbers_stay_in_their_group(device, rng):
    x = rng.normal(size=(2, 6, 5)).astype(np.float32)
    x[1, 2, 3] = np.nan
    there = gl.to_device(x, device)
    y, mean, var = groupnorm(there, None, None, 3, 1e-5)
    for statistic in (mean, var):  # InstanceNorm's running statistics follow them
        assert np.isnan(statistic.get()).tolist() == [[False] * 3, [False, True, False]]
    dx, _, _ = groupnorm_backward(there * 0 + 1, there, mean, var, None, 1e-5)
    for found in (y, dx):
        assert np.isnan(found.get()).any(axis=2).tolist() == [[False] * 6, [False, False, True, True, False, False]]


@on_devices
def test_refused(device):
    x = gl.to_device(np.ones((2, 6, 4), np.float32), device)
    six, five = (gl.to_device(np.ones(n, np.float32), device) for n in (6, 5))
    groups = gl.to_device(np.ones((2, 3), np.float32), device)
    with pytest.raises(ValueError, match=r"groupnorm: weight must have shape \(6,\), got \(5,\)"):
        groupnorm(x, five, six, 3, 1e-5)
    with pytest.raises(ValueError, match=r"groupnorm_backward: dy must be float32 \(2, 6, 4\) as x is"):
        groupnorm_backward(x[:1], x, groups, groups, None, 1e-5)
    with pytest.raises(ValueError, match=r"groupnorm_backward: var must have shape \(2, 3\), got \(1, 3\)"):
        groupnorm_backward(x, x, groups, groups[:1], None, 1e-5)
    with pytest.raises(ValueError, match=r"groupnorm_backward: weight must have shape \(6,\), got \(5,\)"):
        groupnorm_backward(x, x, groups, groups, five, 1e-5)


def test_offsets_beyond_32_bits(monkeypatch):
    """The last group of an array of more than 2^31 elements, most of whose memory is never touched."""
    samples, channels, positions = (1 << 17) + 1, 128, 128
    x = gl.use("emulated").empty((samples, channels, positions), np.float16)
    x[-1] = 3
    x[-1, -1, ::2] = 1
    only_block(monkeypatch, samples * channels // 8 - 1)
    monkeypatch.setattr("gpulayers.ops.groupnorm.sum_partials", lambda partial: partial[-1])
    y, mean, var = groupnorm(x, None, None, channels, 0.0)
    dx, dweight, dbias = groupnorm_backward(x, x, mean, var, None, 0.0)
    assert (dweight[-1].get(), dbias[-1].get()) == (128, 256)
    assert (mean[-1, -1].get(), var[-1, -1].get()) == (2, 1)
    assert y[-1, -1, :4].get().tolist() == [-1, 1, -1, 1]
    assert not dx[-1, -1].get().any()  # dy = x is a constant and a multiple of xhat


def test_a_group_of_2_31_values_is_refused():
    x = gl.use("emulated").empty((1, 1 << 16, 1 << 15), np.float16)
    with pytest.raises(ValueError, match=r"groups of less than 2\^31 values, got 2147483648"):
        groupnorm(x, None, None, 1, 1e-5)
