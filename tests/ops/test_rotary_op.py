import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.rotary import rotary, rotary_tables


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 7, 3, 6), (0, 3, 2, 4), (2, 0, 2, 4)])
def test_bodies_agree(shape, rng):
    B, T, H, d = shape
    x = rng.normal(size=(B, T, 3, H, d)).astype(np.float32)[:, :, 1]
    tables = rotary_tables(T, d, 10000.0, like=x, start=3)
    assert [t.dtype for t in tables] == [np.float32] * 2
    check_op(rotary, x, *tables)


def test_in_place(rng):
    x = rng.normal(size=(2, 5, 2, 6)).astype(np.float32)
    tables = rotary_tables(5, 6, 10000.0, like=x)
    for body in (rotary.reference, rotary.cpu):
        y, mine = body(x, *tables), x.copy()
        assert body(mine, *tables, out=mine) is mine
        assert np.array_equal(mine, y)


def test_backward_turns_back(rng):
    x = rng.normal(size=(2, 9, 2, 8))
    cos, sin = rotary_tables(9, 8, 10000.0, like=x)
    assert np.allclose(rotary(rotary(x, cos, sin), cos, -sin), x, atol=1e-14)


def test_angles():
    """Su et al. 2021, equation 34: position t turns pair i by t 10000^(-2 i / d)."""
    x = np.zeros((1, 4, 1, 4))
    x[..., 0] = x[..., 1] = 1  # first of pair 0 (0, 2) and of pair 1 (1, 3)
    y = rotary(x, *rotary_tables(4, 4, 10000.0, like=x))
    t = np.arange(4)
    assert np.allclose(y[0, :, 0], np.stack([np.cos(t), np.cos(t / 100), np.sin(t), np.sin(t / 100)], axis=1))
