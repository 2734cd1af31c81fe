import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (300, 1023), (0, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_bodies_agree(shape, affine, rng):
    x, dy = rng.normal(3, 2, (2, *shape)).astype(np.float32)
    weight = rng.normal(size=shape[1]).astype(np.float32) if affine else None
    eps = 1.0 if shape[1] == 1 else 1e-5  # of one column dx would be a difference of nearly equal numbers
    check_op(rmsnorm, x, weight, eps)
    rstd = rmsnorm.bodies["cpu"](x, weight, eps)[1]
    check_op(rmsnorm_backward, dy, x, rstd, weight, factor=3)  # sums over 300 rows
