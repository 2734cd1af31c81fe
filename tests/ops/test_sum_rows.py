import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.sum_rows import sum_rows


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (1500, 33), (0, 4), (4, 0)])
def test_bodies_agree(shape, rng):
    x = rng.normal(size=shape).astype(np.float32)
    check_op(sum_rows, x, factor=5)  # up to 1500 terms that cancel
    check_op(sum_rows, x.T, factor=5)


def test_a_half_type_is_summed_in_float32():
    assert sum_rows(np.full((5000, 2), 30, np.float16)).tolist() == [150000, 150000]  # beyond float16
