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


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_bits_decide(body):
    """Over more than one block of rows, and from a first sample that is no multiple of the generator's block."""
    key = Key(seed=5, step=6, call=7, first_sample=3)
    y = dropout.bodies[body](np.ones((400, 999), np.float32), key, 0.5)
    assert np.array_equal(y, np.where(random_bits(key, 999, 400) < keep_threshold(0.5), 0, np.float32(2)))
