import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices, only_block
from tolerances import assert_close

import gpulayers as gl
from gpulayers.ops.softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    softmin,
    softmin_backward,
)

COLS = [1, 2, 5, 33, 128, 129, 1023]
PAIRS = [(softmax, softmax_backward), (log_softmax, log_softmax_backward)]
both = pytest.mark.parametrize(("forward", "backward"), PAIRS, ids=["softmax", "log_softmax"])


@on_devices
@in_storage
@pytest.mark.parametrize("cols", COLS)
@both
def test_against_the_reference(forward, backward, cols, storage, device, rng):
    x, dy = rng.normal(0, 3, (2, 5 if cols < 200 else 2, cols)).astype(np.float32)
    check_kernel(forward, device, x + 300, storage=storage)
    y = forward.reference(x)
    terms = np.abs(dy).max() * (1 if forward is softmax else cols)  # dx is a difference of such terms
    check_kernel(backward, device, dy, y, storage=storage, scale=terms)


@on_devices
@in_storage
@both
def test_a_row_that_no_block_can_hold(forward, backward, storage, device, rng):
    """50257: more than 512 threads with 4 packs each, so it is read twice."""
    x, dy = rng.normal(0, 3, (2, 1, 50257)).astype(np.float32)
    check_kernel(forward, device, x, storage=storage, factor=2)  # sums over 50257 terms
    check_kernel(backward, device, dy, forward.reference(x), storage=storage, factor=2, scale=np.abs(dy.sum()))


@on_devices
@both
def test_infinities(forward, backward, device):
    """A row of -inf has no distribution; one with inf or NaN is NaN, and alone."""
    inf = np.inf
    check_kernel(forward, device, np.array([[-inf] * 3, [-inf, 1, 2], [inf, 1, 2], [np.nan, 1, 2], [1, 2, 3]], "f4"))
    check_kernel(forward, device, np.array([[1e38, -1e38, 0]], "f4"))
    check_kernel(forward, device, np.array([[30000, -30000, 30000]], "f4"), storage="float16")


@on_devices
def test_h04_cross_terms(device):
    """wkcn/mobula #3: the derivative of softmax is not its diagonal."""
    y = softmax(np.array([[1, 2, 3]], np.float32))
    for dy, wanted in (
        ([1, 0, 0], [0.0819251, -0.0220330, -0.0598920]),
        ([0.5, -1, 2], [-0.0567885, -0.5214598, 0.5782482]),
    ):
        (dx,) = check_kernel(softmax_backward, device, np.array([dy], np.float32), y)
        assert dx.get() == pytest.approx(np.array([wanted]), abs=1e-6)


@on_devices
@both
def test_views_and_nothing(forward, backward, device, rng):
    """H09 (cupy #9233), H13 (pytorch PR 80893)."""
    x = rng.normal(size=(12, 14)).astype(np.float32)
    for view in (x.T, x[::2], x[:, 1:], x[::-1, ::-1], x[:0], x[:, :0]):
        check_kernel(forward, device, view)
        check_kernel(backward, device, view, forward.reference(view), scale=10)


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 2, 4])  # 8 bytes, among others
def test_any_alignment(start, storage, device, rng):
    """Inputs of one backward pass that begin at different places behind a 16-byte boundary."""
    flat = gl.to_device(rng.normal(size=2 * 40 + start).astype(np.float32), device).astype(storage)
    y, dy = flat[:80].reshape(2, 40), flat[start:].reshape(2, 40)
    for one, other in ((dy, y), (y, dy)):
        exact = softmax_backward.reference(*(a.get().astype(np.float64) for a in (one, other)))
        found = softmax_backward(one, other).get().astype(np.float64)
        assert_close(found, exact, storage, scale=np.abs(exact).max())  # sums of 40 terms of either sign


@on_devices
def test_other_shapes_are_refused(device):
    y, dy = (gl.to_device(np.ones(shape, np.float32), device) for shape in ((2, 3), (2, 2)))
    with pytest.raises(ValueError, match=r"dy and y of one shape and dtype, got float32 \(2, 2\) and float32 \(2, 3\)"):
        softmax_backward(dy, y)


def test_h11_beyond_32_bits(monkeypatch, rng):
    """cupy #7539: the last row begins at element 2,239,968,000. Only its block runs."""
    rows, cols = 70_000, 32_000
    cp = gl.use("emulated")
    x = cp.zeros((rows, cols), np.float16)
    row = rng.normal(0, 3, cols).astype(np.float16)
    x[-1] = cp.asarray(row)
    only_block(monkeypatch, rows - 1)
    y = softmax(x)
    assert np.allclose(y[-1].get(), softmax.reference(row[None].astype(np.float64))[0], atol=1e-5)
    assert not y[-2].get().any()


@on_devices
@in_storage
@pytest.mark.parametrize("cols", [5, 129, 2049])
def test_softmin(cols, storage, device, rng):
    """Rows of a warp and of a block; what lies beside a row must not win; a row of inf has no distribution."""
    x, dy = rng.normal(0, 3, (2, 3, cols)).astype(np.float32)
    x[:, 0] -= 20
    check_kernel(softmin, device, x + 300, storage=storage)
    check_kernel(softmin_backward, device, dy, softmin.reference(x), storage=storage, scale=np.abs(dy).max())
    check_kernel(softmin, device, np.full((1, cols), np.inf, "f4"), storage=storage)


@on_devices
def test_softmin_of_a_row_that_is_read_twice(device, rng):
    x, dy = rng.normal(0, 3, (2, 1, 8209)).astype(np.float32)
    check_kernel(softmin, device, x)
    check_kernel(softmin_backward, device, dy, softmin.reference(x), scale=np.abs(dy).max())
