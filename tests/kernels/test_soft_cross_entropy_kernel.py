"""The kernel of cross-entropy with class probabilities: every option, any length and alignment."""

import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy


def batch(rng, rows, cols):
    targets = rng.choice([0, 0.125, 0.5, 1], (rows, cols))
    return rng.normal(0, 3, (rows, cols)).astype(np.float32), targets.astype(np.float32)


def check(device, storage, logits, targets, weight=None, scale=None, smoothing=0.0, z_loss=0.0):
    """scale: the gradient is a difference of probabilities times the sum of the targets, and may cancel."""
    mass = float(np.nan_to_num(targets.sum(axis=1)).max(initial=1))
    weight = None if weight is None else Exact(weight)
    scale = None if scale is None else Exact(np.array(scale, np.float32))
    args = logits, targets, weight, scale, smoothing, z_loss, False
    return check_kernel(soft_cross_entropy, device, *args, storage=storage, scale=mass)


@on_devices
@in_storage
@pytest.mark.parametrize("cols", [1, 2, 5, 31, 129, 1025])
def test_against_the_reference(device, storage, cols, rng):
    logits, targets = batch(rng, 3, cols)
    check(device, storage, logits - 200, targets)
    weight = rng.choice([0, 0.5, 2], cols).astype(np.float32)
    check(device, storage, logits[::-1], targets, weight, 0.25, smoothing=0.1, z_loss=1e-2)


@on_devices
def test_a_long_row(device, rng):
    logits, targets = rng.normal(0, 3, (1, 50257)).astype(np.float32), np.zeros((1, 50257), np.float32)
    targets[0, [3, 50256]] = 0.5
    check(device, "float32", logits, targets)


@on_devices
def test_infinities_and_nan_stay_in_their_row(device):
    logits = np.array([[0, -np.inf, 0], [0, -np.inf, 0], [np.nan, 1, 1], [np.inf, 1, 1], [1, 2, 3]], np.float32)
    targets = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 1, 0], [0, 1, 0], [0, np.nan, 1]], np.float32)
    check(device, "float32", logits, targets)


@on_devices
def test_without_a_z_loss_a_huge_row_has_none(device):
    """log sum exp is 1e30, whose square is infinite: times a factor of 0 it would be NaN."""
    logits, targets = np.array([[1e30, 0, 0]], np.float32), np.array([[1, 0, 0]], np.float32)
    loss, dlogits = gl.cross_entropy(gl.to_device(logits, device), gl.to_device(targets, device))
    assert float(loss) == 0
    assert not dlogits.get().any()


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_whole_call(device, reduction, rng):
    """Layouts, soft capping and in place, as on the CPU."""
    logits = rng.normal(0, 3, (4, 7, 3)).astype(np.float32)
    soft, ids = rng.dirichlet(np.ones(7), (4, 3)).astype(np.float32), rng.integers(0, 7, (4, 3))
    ids[0] = -100
    weight = rng.uniform(0.5, 2, 7).astype(np.float32)
    for targets in (ids, np.moveaxis(soft, -1, 1)):
        for cap in (None, 5.0):
            options = {"axis": 1, "label_smoothing": 0.1, "z_loss": 1e-3, "softcap": cap, "reduction": reduction}
            wanted = gl.cross_entropy(logits, targets, weight=weight, **options)
            there = [gl.to_device(np.ascontiguousarray(a), device) for a in (logits, targets, weight)]
            found = gl.cross_entropy(*there[:2], weight=there[2], **options)
            moved = gl.to_device(np.ascontiguousarray(np.moveaxis(logits, 1, -1)), device)
            last = there[1] if targets is ids else gl.to_device(soft, device)
            del options["axis"]
            loss, gradient = gl.cross_entropy_inplace(moved, last, weight=there[2], **options)
            assert np.array_equal(loss.get(), found[0].get())
            assert np.array_equal(np.moveaxis(gradient.get(), -1, 1), found[1].get())
            for a, b in zip(found, wanted, strict=True):
                assert a.dtype == b.dtype
                assert a.get() == pytest.approx(b, rel=3e-6, abs=3e-6)
