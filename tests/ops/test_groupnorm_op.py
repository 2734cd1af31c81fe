import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward

SHAPES = [
    ((1, 1, 1), 1),
    ((3, 6, 5), 2),
    ((2, 7, 1023), 7),
    ((5, 12, 1), 4),
    ((4, 6, 3), 1),
    ((70, 8, 131), 4),  # several blocks of samples
    ((0, 6, 5), 3),
    ((3, 6, 0), 3),
]


@pytest.mark.parametrize(("shape", "groups"), SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_bodies_agree(shape, groups, affine, rng):
    x, dy = rng.normal(3, 2, (2, *shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32) if affine else (None, None)
    check_op(groupnorm, x, weight, bias, groups, 1e-5)
    mean, var = groupnorm.reference(x, weight, bias, groups, 1e-5)[1:]
    check_op(groupnorm_backward, dy, x, mean, var, weight, 1e-5, factor=5)  # sums over up to 9000 values


def test_strided_views(rng):
    x, dy = (a.transpose(0, 2, 1)[:, ::2] for a in rng.normal(size=(2, 3, 5, 8)).astype(np.float32))
    check_op(groupnorm, x, None, None, 2, 1e-5)
    mean, var = groupnorm.reference(x, None, None, 2, 1e-5)[1:]
    check_op(groupnorm_backward, dy, x, mean, var, None, 1e-5, factor=3)


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(mean):
    """burn-rs #5607, pytorch PR #40308: the four numbers as one group, and as one channel among others."""
    x = np.zeros((1, 2, 4), np.float32)
    x[0, 1] = mean + np.array([0, 0.5, 1, 1.5])
    y, found, var = groupnorm(x, None, None, 2, 1e-5)
    assert np.allclose(y[0, 1], [-1.3416193, -0.4472064, 0.4472064, 1.3416193], rtol=1e-6)
    assert not y[0, 0].any()
    assert found.tolist() == [[0, mean + 0.75]]
    assert var.tolist() == [[0, 0.3125]]


def test_nan_stays_in_its_group(rng):
    x = rng.normal(size=(2, 6, 5)).astype(np.float32)
    x[1, 2, 3] = np.nan
    y, mean, var = groupnorm(x, None, None, 3, 1e-5)
    dx, _, _ = groupnorm_backward(np.ones_like(x), x, mean, var, None, 1e-5)
    for found in (y, dx):
        assert np.isnan(found).any(axis=2).tolist() == [[False] * 6, [False, False, True, True, False, False]]
