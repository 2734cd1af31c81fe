import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.cuda import check_errors
from gpulayers.ops.cosine_embedding import cosine_embedding


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(0, 3), (5, 1), (4, 31), (3, 129), (2, 1025), (2, 4099), (3, 0)])
def test_against_the_reference(device, storage, shape, rng):
    """scale: the gradient is a difference of terms of the size of 1 / norm, which may cancel, to 0 in one dimension."""
    x1, x2 = rng.normal(0.3, 1, (2, *shape)).astype(np.float32)
    target = rng.choice([-1, 1], shape[0]).astype(np.float32)
    smallest = min((float(np.linalg.norm(x, axis=1).min()) for x in (x1, x2) if x.size), default=1.0)
    args = x1, x2[::-1], target, -0.5, 0.5, Exact(np.array(2, np.float32))
    check_kernel(cosine_embedding, device, *args, storage=storage, scale=max(1, 1 / smallest))


@on_devices
def test_zeros_infinities_and_nan(device):
    x1 = np.array([[0, 0], [1e18, 1e18], [np.nan, 1], [np.inf, 1], [1, 1], [1, 0]], np.float32)
    x2 = np.array([[1, 0], [1e18, 1e18], [1, 1], [1, 1], [0, 0], [1, 0]], np.float32)
    for sign in (1, -1):
        args = x1, x2, np.full(6, sign, np.float32), 1.0, 1.0, None
        losses, dx1, dx2 = check_kernel(cosine_embedding, device, *args, scale=1)
        assert np.isnan(losses.get()).tolist() == [False, False, True, True, False, False]
        assert not np.isnan(dx1.get()[[0, 1, 4, 5]]).any()
        assert not np.isnan(dx2.get()[[0, 1, 4, 5]]).any()


@on_devices
def test_a_target_that_means_nothing(device):
    x, target = (gl.to_device(np.asarray(a, np.float32), device) for a in (np.ones((3, 2)), [1, 0, np.nan]))
    losses, (dx1, dx2) = gl.cosine_embedding_loss(x, x, target, reduction="none")
    assert np.isnan(losses.get()).tolist() == [False, True, True]
    assert not dx1.get()[1].any()
    assert not dx2.get()[1].any()
    assert np.isnan(dx1.get()[2]).all()
    with pytest.raises(ValueError, match="number 1 of the targets of an embedding loss is neither 1 nor -1"):
        check_errors(x)
    check_kernel(
        cosine_embedding, device, x.get(), x.get(), np.array([1, 1, np.nan], np.float32), 0.0, 1.0, None, scale=1
    )


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_whole_call(device, reduction, rng):
    x1, x2 = rng.normal(size=(2, 4, 3, 7)).astype(np.float32)
    target = rng.choice([-1, 1], (4, 3))
    loss, gradients = gl.cosine_embedding_loss(x1, x2, target, -0.5, reduction)
    there = [gl.to_device(a, device) for a in (x1, x2, target)]
    found, found_gradients = gl.cosine_embedding_loss(*there, margin=-0.5, reduction=reduction)
    for a, b in zip((found, *found_gradients), (loss, *gradients), strict=True):
        assert a.dtype == b.dtype
        assert a.get() == pytest.approx(b, rel=3e-6, abs=1e-6)
