import numpy as np
import pytest
from contract import check_op

from gpulayers.gradcheck import gradcheck
from gpulayers.ops.mse import mse, mse_loss


@pytest.mark.parametrize("size", [0, 1, 1023, 200_003])
def test_bodies_agree(size, rng):
    x, target = rng.normal(5, 2, (2, size)).astype(np.float32)
    check_op(mse, x, target, 1 / max(size, 1))
    check_op(mse, x[::2], target[::-1][::2], 1.0, np.array(3, np.float32))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5)])
def test_gradient(reduction, shape, rng):
    target = rng.normal(size=shape)
    gradcheck(lambda x: mse_loss(x, target, reduction), rng.normal(size=shape))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_scale_multiplies_the_gradient_and_not_the_loss(reduction, dtype, rng):
    x, target = rng.normal(size=(2, 3, 4)).astype(dtype)
    plain, dx = mse_loss(x, target, reduction)
    loss, scaled = mse_loss(x, target, reduction, scale=np.array(8, np.float32))
    assert np.array_equal(loss, plain)
    assert np.array_equal(scaled, 8 * dx)
    assert scaled.dtype == dx.dtype


@pytest.mark.parametrize("scale", [8.0, np.ones(1, np.float32)])
def test_scale_is_a_scalar_array(scale):
    with pytest.raises(ValueError, match=r"mse_loss: scale must be a scalar array, got (float|shape \(1,\))"):
        mse_loss(np.zeros(3), np.zeros(3), scale=scale)


def test_worked_numbers():
    x, target = np.array([[1, 2], [3, 5]], np.float32), np.array([[0, 2], [5, 5]], np.float32)
    loss, dx = mse_loss(x, target)
    assert (float(loss), dx.tolist()) == (1.25, [[0.5, 0], [-1, 0]])
    loss, dx = mse_loss(x.T, target.T, reduction="sum")
    assert (float(loss), dx.T.tolist()) == (5, [[2, 0], [-4, 0]])
    loss, dx = mse_loss(x, target, reduction="none")
    assert (loss.tolist(), dx.tolist()) == ([[1, 0], [4, 0]], [[2, 0], [-4, 0]])


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_empty(shape, reduction):
    loss, dx = mse_loss(np.zeros(shape, np.float32), np.zeros(shape, np.float32), reduction)
    assert loss == 0
    assert dx.shape == shape


@pytest.mark.parametrize(("dtype", "wide"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
def test_dtypes(dtype, wide):
    for reduction in ("mean", "sum", "none"):
        loss, dx = mse_loss(np.full(9, 300, dtype), np.zeros(9, dtype), reduction)  # 300^2 overflows float16
        assert (loss.dtype, dx.dtype) == (wide, dtype)
        assert np.isfinite(loss).all()


@pytest.mark.parametrize(
    ("x", "target", "reduction", "error", "message"),
    [
        (np.zeros(3, int), np.zeros(3, int), "mean", TypeError, "one floating dtype, got int64 and int64"),
        (np.zeros(3), np.zeros(3, np.float32), "mean", TypeError, "one floating dtype, got float64 and float32"),
        (np.zeros((3, 1)), np.zeros(3), "mean", ValueError, r"shape of x, \(3, 1\), got \(3,\)"),
        (np.zeros(3), np.zeros(3), "avg", ValueError, "one of mean, sum, none, got 'avg'"),
    ],
)
def test_refusals(x, target, reduction, error, message):
    with pytest.raises(error, match=message):
        mse_loss(x, target, reduction)
