import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.add import add


@pytest.mark.parametrize(("a", "b"), [((1,), (1,)), ((0, 4), (4,)), ((2, 3, 5), (3, 5)), ((7, 5), (7, 1))])
def test_bodies_agree(a, b, rng):
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in (a, b))
    check_op(add, a, b)
    assert add(a, b) is not a
