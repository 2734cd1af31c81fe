import numpy as np
import pytest
from contract import check_op, check_signatures
from tolerances import assert_close

from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 1), (5, 1023), (3001, 47)])
@pytest.mark.parametrize("affine", [True, False])
def test_bodies_agree(shape, affine, rng):
    x, dy = rng.normal(3, 2, (2, *shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32) if affine else (None, None)
    check_op(batchnorm_statistics, x, factor=2)
    mean, var = batchnorm_statistics.reference(x)
    check_op(batchnorm, x, mean, var, weight, bias, 1e-5)
    for fixed in (False, True):
        args = (dy, x, mean, var, weight, 1e-5, fixed)
        if shape[0] > 2:  # below, dx is a difference of equal terms
            check_op(batchnorm_backward, *args, factor=3)
        else:
            terms = np.abs(dy).max() / np.sqrt(var.min() + 1e-5)
            for a, b in zip(batchnorm_backward.cpu(*args), batchnorm_backward.reference(*args), strict=True):
                assert_close(a, b, factor=3, scale=10 * terms)


def test_transposed_and_empty(rng):
    x, dy = rng.normal(size=(2, 4, 50)).astype(np.float32)
    check_op(batchnorm_statistics, x.T)
    check_op(batchnorm_statistics, x.T[:0])
    assert [v.tolist() for v in batchnorm_statistics(x[:0])] == [[0] * 50] * 2
    mean, var = batchnorm_statistics.reference(x.T)
    for rows in (slice(None), slice(0)):
        check_op(batchnorm, x.T[rows], mean, var, None, None, 1e-5)
        check_op(batchnorm_backward, dy.T[rows], x.T[rows], mean, var, None, 1e-5, factor=3)


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(mean):
    """burn-rs #5607, pytorch PR #40308, down the columns."""
    x = (mean + np.array([[0], [0.5], [1], [1.5]])).astype(np.float32)
    found = batchnorm_statistics(x)
    assert [v.tolist() for v in found] == [[mean + 0.75], [0.3125]]


def test_a_constant_column_has_no_variance(rng):
    x = np.full((1000, 3), 0.1, np.float32)
    mean, var = batchnorm_statistics(x)
    assert np.allclose(mean, 0.1)
    assert (var >= 0).all()
    assert (var < 1e-14).all()


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("apply", [None, 1.0, 0.0])
def test_update(momentum, apply, rng):
    check_signatures(batchnorm_update)
    mean, var = rng.normal(size=(2, 5)).astype(np.float32) ** 2
    control = None if apply is None else np.array([apply, 0, 0, 0, 0, 0], np.float32)
    found = []
    for body in (batchnorm_update.reference, batchnorm_update.cpu):
        running = np.zeros(5, np.float32), np.ones(5, np.float32), np.array([1])
        body(*running, mean, var, 3, momentum, control)
        found.append(running)
    for a, b in zip(*found, strict=True):
        assert_close(a, b)
    share = 0 if apply == 0 else 0.1 if momentum else 0.5
    assert_close(found[1][0], share * mean)
    assert_close(found[1][1], 1 - share + share * var * 3 / 2)
    assert found[1][2].tolist() == [1 if apply == 0 else 2]
