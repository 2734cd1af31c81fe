import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (300, 1023), (0, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_bodies_agree(shape, affine, rng):
    x, dy = rng.normal(3, 2, (2, *shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32) if affine else (None, None)
    check_op(layernorm, x, weight, bias, 1e-5)
    mean, rstd = layernorm.reference(x, weight, bias, 1e-5)[1:]
    check_op(layernorm_backward, dy, x, mean, rstd, weight, factor=3)  # sums over 300 rows
    residual = rng.normal(size=shape).astype(np.float32)
    check_op(layernorm_backward, dy, x, mean, rstd, weight, residual, factor=3)
    check_op(add_layernorm, x, residual, weight, bias, 1e-5)
