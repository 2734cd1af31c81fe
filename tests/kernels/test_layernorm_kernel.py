import numpy as np
import pytest
from devices import STORAGE, Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward

COLS = [1, 2, 5, 8, 31, 33, 128, 129, 1023, 1025]


@on_devices
@in_storage
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("affine", [True, False])
def test_against_the_reference(device, storage, cols, affine, rng):
    x, dy, residual = rng.normal(1, 2, (3, 5, cols)).astype(np.float32)
    weight, bias = rng.normal(size=(2, cols)).astype(np.float32) if affine else (None, None)
    residual = residual if affine else None
    check_kernel(layernorm, device, x, weight, bias, 1e-5, storage=storage)
    mean, rstd = layernorm.reference(x, weight, bias, 1e-5)[1:]
    terms = rstd.max() * np.abs(dy if weight is None else dy * weight).max()  # with two columns dx is nearly 0
    args = (dy, x, Exact(mean), Exact(rstd), weight, residual)
    check_kernel(layernorm_backward, device, *args, storage=storage, factor=2, scale=terms)


@on_devices
@pytest.mark.parametrize(("cols", "storage"), [(6144, "float32"), (3072, "bfloat16")])
def test_backward_where_the_sums_of_a_block_take_48_kb(device, cols, storage, rng):
    """With the kernel's own array that is more than a block gets unasked."""
    x, dy = rng.normal(1, 2, (2, 3, cols)).astype(np.float32)
    mean, rstd = layernorm.reference(x, None, None, 1e-5)[1:]
    check_kernel(layernorm_backward, device, dy, x, Exact(mean), Exact(rstd), None, storage=storage, factor=2)


@on_devices
@pytest.mark.parametrize("cols", COLS)
def test_sum_and_norm(device, cols, rng):
    x, f = rng.normal(1, 2, (2, 5, cols)).astype(np.float32)
    check_kernel(add_layernorm, device, x, f, *rng.normal(size=(2, cols)).astype(np.float32), 1e-5)


@on_devices
@in_storage
def test_the_rounded_sum_is_normalised(device, storage, rng):
    """What backward finds in the stored sum is what forward has normalised."""
    x, f = (gl.to_device(a, device).astype(storage) for a in rng.normal(3, 2, (2, 5, 40)).astype(np.float32))
    total, y, mean, rstd = add_layernorm(x, f, None, None, 1e-5)
    assert np.array_equal(total.get(), (x + f).get())
    for one, other in zip((y, mean, rstd), layernorm(total, None, None, 1e-5), strict=True):
        assert np.array_equal(one.get(), other.get())


@on_devices
@pytest.mark.parametrize("cols", [9, 1030])  # rows of one warp, eight a block, and rows of several warps
def test_more_rows_than_blocks(device, cols, rng, monkeypatch):
    monkeypatch.setattr("gpulayers.ops.layernorm.BLOCKS", 3)
    x, dy = rng.normal(size=(2, 61 if cols == 9 else 8, cols)).astype(np.float32)
    weight = rng.normal(size=cols).astype(np.float32)
    mean, rstd = (Exact(a) for a in layernorm.reference(x, weight, None, 1e-5)[1:])
    check_kernel(layernorm_backward, device, dy, x, mean, rstd, weight, factor=2, spare=False)  # sums over 61 rows


@on_devices
def test_rows_of_more_than_a_block_reads_at_once(device, rng):
    x, dy = rng.normal(size=(2, 2, 9001)).astype(np.float32)
    weight, bias = rng.normal(size=(2, 9001)).astype(np.float32)
    check_kernel(layernorm, device, x, weight, bias, 1e-5)
    mean, rstd = (Exact(a) for a in layernorm.reference(x, weight, bias, 1e-5)[1:])
    check_kernel(layernorm_backward, device, dy, x, mean, rstd, weight)


@on_devices
def test_rows_too_wide_for_shared_memory(device, rng):
    x, dy = rng.normal(size=(2, 2, 40000)).astype(np.float32)
    mean, rstd = (Exact(a) for a in layernorm.reference(x, None, None, 1e-5)[1:])
    check_kernel(layernorm_backward, device, dy, x, mean, rstd, None)


@on_devices
@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(device, mean):
    x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    y, _, _ = check_kernel(layernorm, device, x, None, None, 1e-5)
    assert y.get() == pytest.approx(np.array([[-1.3416193, -0.4472064, 0.4472064, 1.3416193]]), rel=1e-6)


@on_devices
def test_views_nothing_and_refusals(device, rng):
    x = rng.normal(size=(7, 12)).astype(np.float32)
    for view in (x.T[::2], x[:, 1:], x[:0]):
        check_kernel(layernorm, device, view, None, None, 1e-5)
        check_kernel(add_layernorm, device, view, view, None, None, 1e-5)
        mean, rstd = (Exact(a) for a in layernorm.reference(view, None, None, 1e-5)[1:])
        check_kernel(layernorm_backward, device, view, view, mean, rstd, None, view, factor=3, scale=3)
    there = gl.to_device(x, device)
    with pytest.raises(ValueError, match=r"add_layernorm: f must be float32 \(7, 12\) as x is, got float32 \(12,\)"):
        add_layernorm(there, there[0], None, None, 1e-5)


@on_devices
def test_arrays_of_another_size_are_refused(device, rng):
    """A kernel would read beside them."""
    x = gl.to_device(rng.normal(size=(4, 6)).astype(np.float32), device)
    rows, cols, five = x[:, 0].copy(), x[0].copy(), x[0, :5].copy()
    half = x.astype(np.float16)
    for call, sentence in (
        (lambda: layernorm(x, five, None, 1e-5), r"layernorm: weight must have shape \(6,\), got \(5,\)"),
        (lambda: layernorm(x, cols, five, 1e-5), r"layernorm: bias must have shape \(6,\), got \(5,\)"),
        (lambda: add_layernorm(x, x, five, None, 1e-5), r"add_layernorm: weight must have shape \(6,\)"),
        (
            lambda: layernorm_backward(x[:3], x, rows, rows, None),
            r"dy must be float32 \(4, 6\) as x is, got .*\(3, 6\)",
        ),
        (lambda: layernorm_backward(half, x, rows, rows, None), r"dy must be float32 \(4, 6\) as x is, got float16"),
        (lambda: layernorm_backward(x, x, rows, rows, None, x[:3]), r"residual must be float32 \(4, 6\) as x is"),
        (lambda: layernorm_backward(x, x, rows, five, None), r"rstd must have shape \(4,\), got \(5,\)"),
        (lambda: layernorm_backward(x, x, rows, rows, five), r"weight must have shape \(6,\), got \(5,\)"),
        (lambda: rmsnorm(x, five, 1e-5), r"rmsnorm: weight must have shape \(6,\), got \(5,\)"),
        (lambda: rmsnorm_backward(x, x, five, None), r"rmsnorm_backward: rstd must have shape \(4,\)"),
        (lambda: rmsnorm_backward(x[:3], x, rows, None), r"rmsnorm_backward: dy must be float32 \(4, 6\) as x is"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    with pytest.raises(TypeError, match="weight"):
        layernorm(x, cols.astype(np.float16), None, 1e-5)


@on_devices
def test_a_nan_is_not_hidden(device, rng):
    x = rng.normal(size=(3, 40)).astype(np.float32)
    x[1, 7] = np.nan
    y, mean, rstd = (a.get() for a in layernorm(gl.to_device(x, device), None, None, 1e-5))
    assert np.isnan(y[1]).all()
    assert np.isnan(mean).tolist() == np.isnan(rstd).tolist() == [False, True, False]
    assert np.isfinite(y[::2]).all()


@on_devices
@in_storage
def test_a_mean_near_0_keeps_its_digits(device, storage, rng):
    """Values whose sum is exact: then the mean is, too. What is left of x - mean is rounding, and must not be added."""
    x = (np.round(8 * rng.normal(0, 3, (3, 1023))) / 8).astype(STORAGE[storage])
    _, mean, _ = layernorm.cuda(gl.to_device(x, device), None, None, 1e-5)
    exact = x.astype(np.float64).mean(axis=1)
    assert np.abs(mean.get() - exact).max() <= 1e-7 * np.abs(exact).max()
