import numpy as np
import pytest
from contract import check_op, check_signatures
from tolerances import assert_close

from gpulayers.ops.embedding import check_ids, embedding, embedding_backward, scatter_add
from gpulayers.parameter import Parameter

CASES = [(1, 1, 1), (3, 7, 2), (7, 1023, 5), (1000, 1500, 33), (5, 0, 3), (50257, 300, 1)]


@pytest.mark.parametrize(("size", "rows", "dim"), CASES)
def test_forward_bodies_agree(size, rows, dim, rng):
    table = rng.normal(size=(size, dim)).astype(np.float32)
    check_op(embedding, rng.integers(0, size, rows), table)
    check_op(embedding, rng.integers(0, size, (rows, 2)).T.astype(np.uint16), table[:, ::-1])


@pytest.mark.parametrize(("size", "rows", "dim"), CASES)
def test_scatter_bodies_agree(size, rows, dim, rng):
    check_signatures(scatter_add)
    ids = np.minimum(rng.geometric(0.05, rows) - 1, size - 1)  # some often, some once
    dy, start = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(size, dim)).astype(np.float32)
    exact = scatter_add.reference(dy.astype(np.float64), ids, start.astype(np.float64))
    for body in (scatter_add.reference, scatter_add.cpu):
        for given in (dy, np.asfortranarray(dy)):
            assert_close(body(given, ids.astype(np.int16 if size < 32768 else np.int32), start.copy()), exact, factor=4)


def test_many_rare_ids_in_several_blocks(rng):
    """1700 ids of one to six times, more than a block of the cpu body; each sum has the order of its rows."""
    ids, dy = rng.integers(0, 3000, 2500), rng.normal(size=(2500, 64)).astype(np.float32)
    exact = np.zeros((3000, 64), np.float32)
    np.add.at(exact, ids, dy)
    assert np.array_equal(scatter_add(dy, ids, np.zeros((3000, 64), np.float32)), exact)


def test_the_same_bits_every_time(rng):
    ids, dy = rng.integers(0, 9, 500), rng.normal(size=(500, 8)).astype(np.float32)
    results = [scatter_add(dy, ids, np.zeros((9, 8), np.float32)) for _ in range(3)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_one_row_with_nan_reaches_no_other(rng):
    dy = np.ones((40, 2), np.float32)
    dy[7] = np.nan
    ids = np.arange(40) % 4
    out = scatter_add(dy, ids, np.zeros((4, 2), np.float32))
    assert np.isnan(out).any(axis=1).tolist() == [False, False, False, True]


def test_frozen_or_padded_rows_get_nothing():
    p = Parameter(np.zeros((3, 2), np.float32))
    dy = np.ones((4, 2), np.float32)
    embedding_backward(dy, np.array([0, 1, 1, 2]), add_to=p, padding_idx=1)
    assert p.grad.tolist() == [[1, 1], [0, 0], [1, 1]]
    p.trainable = False
    embedding_backward(dy, np.array([0, 1, 1, 2]), add_to=p)
    assert p.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_ids_out_of_range(dtype):
    with pytest.raises(ValueError, match=r"X: the id at position \(1, 0\) is 5, outside 0\.\.4"):
        check_ids(np.array([[4, 0], [5, 9]], dtype), 5, "X")
    if np.iinfo(dtype).min < 0:
        with pytest.raises(ValueError, match=r"X: the id at position \(2,\) is -1, outside 0\.\.4"):
            check_ids(np.array([4, 0, -1], dtype), 5, "X")
    check_ids(np.array([4, 0], dtype), 300, "X")


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_ids_are_integers(dtype):
    with pytest.raises(TypeError, match="X takes an array of integer ids, got"):
        check_ids(np.zeros(3, dtype), 5, "X")
