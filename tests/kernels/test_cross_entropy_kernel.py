"""The cross-entropy kernel: every option, any length and alignment, bad targets, beyond 2^31 elements."""

import numpy as np
import pytest
from devices import STORAGE, Exact, check_kernel, in_storage, on_devices, only_block
from tolerances import assert_close

import gpulayers as gl
from gpulayers.cuda import check_errors, error_flag
from gpulayers.emulator.settings import using
from gpulayers.ops.cross_entropy import cross_entropy, cross_entropy_inplace
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows

IGNORE = -100
COLS = [1, 2, 3, 5, 7, 31, 33, 127, 129, 1023, 1025]


def batch(rng, rows, cols, ignored=0.3, spread=3.0):
    logits = rng.normal(0, spread, (rows, cols)).astype(np.float32)
    targets = rng.integers(0, cols, rows)
    targets[rng.random(rows) < ignored] = IGNORE
    return logits, targets


def check(device, storage, logits, targets, weight=None, scale=None, smoothing=0.0, z_loss=0.0, inplace=False):
    """scale=1: of a gradient that is the size of its terms; a loss below 1 may be a difference of logarithms near 1."""
    weight = None if weight is None else Exact(weight)
    scale = None if scale is None else Exact(np.array(scale, np.float32))
    args = (logits, targets, weight, scale, IGNORE, smoothing, z_loss, inplace)
    return check_kernel(cross_entropy_rows, device, *args, storage=storage, scale=1)


@on_devices
@in_storage
@pytest.mark.parametrize("cols", COLS)
def test_against_the_reference(device, storage, cols, rng):
    """Odd rows begin at every alignment. H12 (verl #2899): a length that is no multiple of any tile."""
    logits, targets = batch(rng, 9 if cols < 200 else 3, cols)
    targets[0] = cols - 1
    check(device, storage, logits - 200, targets)
    weight = rng.choice([0, 0.5, 2], cols).astype(np.float32)
    check(device, storage, logits + 50, targets, weight, 0.25, smoothing=0.1, z_loss=1e-2)


@on_devices
@pytest.mark.parametrize("arch", ["compute_75", "compute_90"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_a_row_that_fits_in_shared_memory_and_one_that_does_not(device, arch, storage, rng):
    """50257 is odd, and is read once or twice: 64 KB of shared memory hold it in no type, 227 KB in both."""
    logits, targets = batch(rng, 2, 50257, ignored=0)
    with using(arch=arch):
        check(device, storage, logits, targets)


@on_devices
@in_storage
def test_in_place(device, storage, rng):
    logits, targets = batch(rng, 5, 301)
    there = gl.to_device(logits, device).astype(STORAGE[storage])
    ids = gl.to_device(targets, device)
    losses, gradient = cross_entropy_rows(there, ids, None, None, IGNORE, 0.1, 0.1, False)
    losses2, gradient2 = cross_entropy_rows(there, ids, None, None, IGNORE, 0.1, 0.1, True)
    assert gradient2 is there
    assert np.array_equal(losses.get(), losses2.get())
    assert np.array_equal(gradient.get(), there.get())


@on_devices
@in_storage
def test_logits_and_gradient_at_different_alignments(device, storage, rng):
    logits, targets = batch(rng, 4, 37)
    there = gl.to_device(np.concatenate([[0], logits.ravel()]), device).astype(STORAGE[storage])[1:].reshape(4, 37)
    assert there.flags.c_contiguous
    ids = gl.to_device(targets, device)
    moved = cross_entropy_rows(there, ids, None, None, IGNORE, 0.0, 0.0, False)
    plain = cross_entropy_rows(there.copy(), ids, None, None, IGNORE, 0.0, 0.0, False)
    for a, b in zip(moved, plain, strict=True):  # the sums run over other packs
        assert_close(a.get().astype(np.float32), b.get().astype(np.float32), b.dtype.name, scale=1)


@on_devices
def test_views(device, rng):
    logits, targets = batch(rng, 4, 14)
    weight = rng.random((7, 3)).astype(np.float32)
    whole = [gl.to_device(a, device) for a in (logits, np.repeat(targets % 7, 2), weight)]
    views = whole[0][:, ::2], whole[1][::2], whole[2][:, 1]
    plain = [a.copy() for a in views]
    for a, b in zip(
        cross_entropy(*views[:2], weight=views[2]), cross_entropy(*plain[:2], weight=plain[2]), strict=True
    ):
        assert np.array_equal(a.get(), b.get())


@on_devices
def test_an_ignored_row_is_zero_whatever_it_holds(device):
    for poison in (np.nan, np.inf, -np.inf):
        logits = np.array([[poison] * 3, [1, 2, 3]], np.float32)
        losses, gradient = check(device, "float32", logits, np.array([IGNORE, 0]), smoothing=0.1, z_loss=0.1)
        assert losses.get()[0] == 0
        assert not gradient.get()[0].any()


@on_devices
def test_infinities_stay_in_their_row(device):
    for row in ([np.nan, 2, 3], [np.inf, 2, 3], [-np.inf] * 3, [-np.inf, 2, 3]):
        logits = np.array([row, [1, 2, 3]], np.float32)
        check(device, "float32", logits, np.array([1, 0]))
        check(device, "float32", logits, np.array([0, 0]), np.array([1, 0, 2], np.float32), smoothing=0.3, z_loss=0.1)


@on_devices
@pytest.mark.parametrize("bad", [3, -1, 1 << 40, -(1 << 40)])
def test_h02_target_out_of_range(device, bad):
    """tensorflow #3739, chainer #4648: noted on the device, raised when somebody reads; nothing else is read."""
    logits, targets = (gl.to_device(a, device) for a in (np.ones((3, 3), np.float32), np.array([0, bad, IGNORE])))
    loss, gradient = cross_entropy_inplace(logits, targets, reduction="none")
    assert np.isnan(loss.get()).tolist() == [False, True, False]
    assert not gradient.get()[1:].any()
    assert error_flag(logits).get().tolist() == [1, 1, bad, 3]
    with pytest.raises(ValueError, match=rf"cross_entropy: target {bad} in row 1 is outside 0\.\.2"):
        check_errors(logits)
    check_errors(logits)


@on_devices
def test_h02_unsigned_targets_and_float64(device):
    huge = gl.to_device(np.array([2**64 - 100], np.uint64), device)  # not -100, though it has the same bits
    loss, _ = cross_entropy(gl.to_device(np.zeros((1, 3), np.float32), device), huge)
    assert np.isnan(float(loss))
    with pytest.raises(ValueError, match=f"target {2**63 - 1} in row 0"):
        check_errors(huge)
    with pytest.raises(ValueError, match="target 5 in row 0"):
        cross_entropy(gl.to_device(np.zeros((1, 3)), device), gl.to_device(np.array([5]), device))


@on_devices
@pytest.mark.parametrize(
    ("storage", "logits", "target", "loss", "gradient"),
    [
        ("float32", [1000, 0, -1000], 1, 1000, [1, -1, 0]),
        ("float32", [89, 0], 1, 89, [1, -1]),
        ("float32", [89, 0], 0, 0, [0, 0]),
        ("float32", [3e38, -3e38], 0, 0, [0, 0]),
        ("float16", [12, 0], 1, 12.000006, [1, -1]),
        ("float16", [65504, -65504], 1, 131008, [1, -1]),
    ],
)
def test_h03_extremes(device, storage, logits, target, loss, gradient):
    there = gl.to_device(np.array([logits]), device).astype(STORAGE[storage])
    found, dlogits = cross_entropy(there, gl.to_device(np.array([target]), device))
    assert found.dtype == np.float32
    assert float(found) == pytest.approx(loss, rel=1e-6)
    assert dlogits.get().tolist() == [gradient]


@on_devices
def test_small_losses_keep_their_digits(device):
    """log(1 + 2e-6), which lse - z would give as a multiple of 1e-6."""
    logits = np.array([[14.5, 1.4, 1.3]], np.float32)
    exact, _ = cross_entropy(logits.astype(np.float64), np.array([0]))
    found, _ = cross_entropy(gl.to_device(logits, device), gl.to_device(np.array([0]), device))
    assert abs(float(found) - exact) < 1.3e-7


@on_devices
def test_h09_strides(device, rng):
    """cupy #9233: a view is read by its strides, not in storage order."""
    logits = gl.to_device(np.array([[1, 4], [2, 5], [3, 6]], np.float32), device).T
    losses, _ = cross_entropy(logits, gl.to_device(np.array([0, 9, 2, 9]), device)[::2], reduction="none")
    assert losses.get() == pytest.approx([2.407606, 0.407606], abs=1e-6)
    logits, targets = batch(rng, 6, 40)
    for view in (np.s_[::2], np.s_[:, 1:], np.s_[::-1]):
        rows = targets[view[0]] if isinstance(view, tuple) else targets[view]
        check(device, "float32", logits[view], np.minimum(rows, 38))


@on_devices
def test_h12_phantom_logits(device):
    """verl #2899: what fills up the last pack must not count as exp(0)."""
    logits = np.array([[-3, -4, -5, -6, -7]], np.float32)
    losses, gradient = check(device, "float32", logits, np.array([0]))
    assert losses.get() == pytest.approx([0.4519144], abs=1e-6)
    wanted = [[-0.3635914, 0.2341217, 0.0861285, 0.0316849, 0.0116562]]
    assert gradient.get() == pytest.approx(np.array(wanted), abs=1e-6)


@on_devices
def test_an_infinite_loss_that_counts_for_nothing_is_zero(device):
    """Of class weights that are all 0 the z-loss is left, which they do not weigh."""
    logits, targets, weight = np.array([[np.inf, 0, 0]], np.float32), np.array([1]), np.zeros(3, np.float32)
    loss, _ = cross_entropy(
        *(gl.to_device(a, device) for a in (logits, targets)), weight=gl.to_device(weight, device), z_loss=0.1
    )
    assert loss.get() == 0


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_h13_nothing(device, reduction):
    """pytorch PR 80893: no row, no launch; no class, and so no target either."""
    for call in (cross_entropy, cross_entropy_inplace):
        for shape in ((0, 5), (2, 0, 5), (0, 0)):
            logits, targets = (gl.to_device(a, device) for a in (np.zeros(shape, "f4"), np.zeros(shape[:-1], int)))
            loss, gradient = call(logits, targets, reduction=reduction)
            assert gradient.shape == shape
            assert loss.shape == (shape[:-1] if reduction == "none" else ())
            assert not loss.get().any()
    logits, targets = (gl.to_device(a, device) for a in (np.zeros((2, 0), "f4"), np.array([IGNORE, 0])))
    cross_entropy(logits, targets)
    with pytest.raises(ValueError, match="target 0 in row 1"):
        check_errors(logits)


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_whole_call(device, reduction, rng):
    """Any integer type, any leading dimensions, the same loss as on the CPU; h01: every target ignored."""
    logits, targets = batch(rng, 12, 33)
    weight = rng.uniform(0.5, 2, 33).astype(np.float32)
    for ids in (targets.astype(np.int16), np.full(12, IGNORE)):
        args = logits.reshape(3, 4, 33), ids.reshape(3, 4)
        options = {"label_smoothing": 0.1, "z_loss": 1e-3, "reduction": reduction}
        loss, gradient = cross_entropy(*args, weight=weight, **options)
        there = [gl.to_device(a, device) for a in args]
        loss2, gradient2 = cross_entropy(*there, weight=gl.to_device(weight, device), **options)
        assert loss2.dtype == np.float32
        assert np.allclose(loss2.get(), loss, rtol=2e-6, atol=2e-6)
        assert np.allclose(gradient2.get(), gradient, atol=2e-6)


def test_h11_beyond_32_bits(monkeypatch, rng):
    """cupy #7539: logits 70,000 x 32,000. Only the last row is run; its start would wrap to -2,054,999,296."""
    rows, cols = 70_000, 32_000
    cp = gl.use("emulated")
    logits = cp.zeros((rows, cols), np.float16)
    assert logits.nbytes > 1 << 32  # pages that nobody touches cost nothing
    row = rng.normal(0, 3, cols).astype(np.float16)
    logits[-1] = cp.asarray(row)
    targets = cp.zeros(rows, np.int64)
    targets[-1] = 31_999
    only_block(monkeypatch, rows - 1)
    losses, _ = cross_entropy_rows(logits, targets, None, None, IGNORE, 0.0, 0.0, True)
    exact = cross_entropy_rows.reference(
        row[None].astype(np.float64), np.array([31_999]), None, None, IGNORE, 0, 0, False
    )
    assert losses[-1:].get() == pytest.approx(exact[0], rel=2e-6)
    assert np.allclose(logits[-1].get(), exact[1][0], atol=1e-3)
    assert not logits[-2].get().any()
