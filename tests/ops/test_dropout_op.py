import ml_dtypes
import numpy as np
import pytest
from contract import check_op

from gpulayers.ops.dropout import dropout
from gpulayers.random import keep_threshold, random_bits
from gpulayers.step import Key


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (301, 1023), (3, 140_000), (0, 4), (4, 0)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_bodies_agree(shape, p, rng):
    check_op(dropout, rng.normal(size=shape).astype(np.float32), Key(1, 2, 3, 4), p)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_is_scaled_in_float32(dtype):
    x = np.linspace(-3, 3, 101).reshape(1, 101).astype(dtype)
    y = dropout(x, Key(0, 0, 0, 0), 0.1)
    exact = dropout(x.astype(np.float32), Key(0, 0, 0, 0), 0.1)
    assert y.dtype == x.dtype
    assert np.array_equal(y, exact.astype(dtype))


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_bits_decide(body):
    """Over more than one block of rows, and from a first sample that is no multiple of the generator's block."""
    key = Key(seed=5, step=6, call=7, first_sample=3)
    y = dropout.bodies[body](np.ones((400, 999), np.float32), key, 0.5)
    assert np.array_equal(y, np.where(random_bits(key, 999, 400) < keep_threshold(0.5), 0, np.float32(2)))
