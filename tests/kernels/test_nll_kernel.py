import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices, only_block

import gpulayers as gl
from gpulayers.cuda import check_errors
from gpulayers.ops.nll import nll

IGNORE = -100


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (9, 1), (700, 2), (5, 7), (3, 129), (2, 1025), (2, 0)])
def test_against_the_reference(device, storage, shape, rng):
    rows, cols = shape
    targets = np.where(rng.random(rows) < 0.3, IGNORE, rng.integers(0, max(cols, 1), rows))
    x, weight = rng.normal(-3, 1, shape).astype(np.float32), Exact(rng.choice([0, 0.5, 2], cols).astype(np.float32))
    check_kernel(nll, device, x[::-1], targets, None, None, IGNORE, storage=storage)
    check_kernel(nll, device, x, targets, weight, Exact(np.array(0.5, np.float32)), IGNORE, storage=storage)


@on_devices
def test_infinities_and_nan(device):
    x = np.array([[np.nan, 0], [-np.inf, 0], [-1, 0], [np.nan, np.nan]], np.float32)
    check_kernel(nll, device, x, np.array([0, 0, 0, IGNORE]), None, None, IGNORE)
    check_kernel(nll, device, x, np.array([0, 0, 0, IGNORE]), np.zeros(2, np.float32), None, IGNORE)


@on_devices
@pytest.mark.parametrize("bad", [3, -1, 1 << 40, -(1 << 40)])
def test_target_out_of_range(device, bad):
    x = gl.to_device(np.ones((3, 3), np.float32), device)
    losses, dx = gl.nll_loss(x, gl.to_device(np.array([0, bad, IGNORE]), device), reduction="none")
    assert np.isnan(losses.get()).tolist() == [False, True, False]
    assert not dx.get()[1:].any()
    with pytest.raises(ValueError, match=rf"nll_loss: target {bad} in row 1 is outside 0\.\.2"):
        check_errors(x)


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_whole_call(device, reduction, rng):
    x, targets = rng.normal(size=(4, 5, 3)).astype(np.float32), rng.integers(0, 5, (4, 3))
    weight = rng.uniform(0.5, 2, 5).astype(np.float32)
    for ids in (targets, np.full((4, 3), IGNORE)):
        wanted = gl.nll_loss(x, ids, weight, axis=1, reduction=reduction)
        found = gl.nll_loss(*(gl.to_device(a, device) for a in (x, ids, weight)), axis=1, reduction=reduction)
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype
            assert a.get() == pytest.approx(b, rel=1e-6)


def test_beyond_32_bits(monkeypatch):
    """70,000 x 32,000: only the last block is run; its offsets would wrap in 32 bits."""
    rows, cols = 70_000, 32_000
    cp = gl.use("emulated")
    x = cp.zeros((rows, cols), np.float16)  # pages that nobody touches cost nothing
    x[-1, -1] = -2
    targets = cp.zeros(rows, np.int64)
    targets[-1] = cols - 1
    only_block(monkeypatch, rows * cols // (256 * 8) - 1)
    losses, dx = nll(x, targets, None, None, IGNORE)
    assert losses[-1:].get() == 2
    assert dx[-1, -2:].get().tolist() == [0, -1]
