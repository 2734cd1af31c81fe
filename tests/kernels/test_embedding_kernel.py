import numpy as np
import pytest
from contract import check_signatures
from devices import STORAGE, check_kernel, in_storage, on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.cuda import check_errors
from gpulayers.ops.embedding import embedding, embedding_backward, scatter_add
from gpulayers.parameter import Parameter


@on_devices
@in_storage
@pytest.mark.parametrize("cols", [1, 2, 8, 33, 128, 1025])
def test_forward(device, storage, cols, rng):
    table = rng.normal(size=(7, cols)).astype(np.float32)
    check_kernel(embedding, device, rng.integers(0, 7, 9), table, storage=storage)


@on_devices
def test_forward_views_dtypes_and_nothing(device, rng):
    table = rng.normal(size=(9, 10)).astype(np.float32)
    ids = rng.integers(0, 9, (4, 3))
    check_kernel(embedding, device, ids.T.astype(np.uint16), table[:, ::-1])
    check_kernel(embedding, device, ids[:0], table)
    check_kernel(embedding, device, ids, table[:, :0])
    with pytest.raises(TypeError, match="Embedding takes an array of integer ids, got float32"):
        embedding(gl.to_device(ids.astype(np.float32), device), gl.to_device(table, device))


@on_devices
@pytest.mark.parametrize("bad", [-1, 9, 1 << 40])
def test_a_bad_id_leaves_a_note_and_zeros(device, bad, rng):
    table, ids = rng.normal(size=(9, 10)).astype(np.float32), np.array([[3, 1], [bad, 0]])
    there = gl.to_device(table, device)
    y = embedding(gl.to_device(ids, device), there).get()
    assert np.array_equal(y[0], table[[3, 1]])
    assert not y[1, 0].any()
    dtable = gl.to_device(np.zeros((9, 10), np.float32), device)
    scatter_add(gl.to_device(y.reshape(4, 10), device), gl.to_device(ids.ravel(), device), dtable)
    assert np.array_equal(np.flatnonzero(dtable.get().any(axis=1)), [0, 1, 3])
    with pytest.raises(ValueError, match=rf"Embedding: the id at position 2 is {bad}, outside 0\.\.8"):
        check_errors(there)
    check_errors(there)


def check_scatter(device, dy, ids, start, storage="float32", padding_idx=None):
    """The kernel against the reference in float64, and the same bits a second time."""
    dy, start = dy.astype(STORAGE[storage]), start.astype(STORAGE[storage])
    found = []
    for _ in range(2):
        args = (gl.to_device(a, device) for a in (dy, ids, start.copy()))
        found.append(scatter_add.cuda(*args, padding_idx).get().astype(np.float64))
    assert np.array_equal(*found)
    exact = scatter_add.reference(dy.astype(np.float64), ids, start.astype(np.float64), padding_idx)
    assert_close(found[0], exact, storage)
    return found[0]


@on_devices
@in_storage
@pytest.mark.parametrize(("size", "rows", "cols"), [(1, 1, 1), (3, 70, 2), (7, 33, 5), (40, 300, 33), (5, 0, 3)])
def test_backward(device, storage, size, rows, cols, rng):
    check_signatures(scatter_add)
    ids = np.minimum(rng.geometric(0.1, rows) - 1, size - 1)  # some often, over several chunks, some once
    dy, start = rng.normal(size=(rows, cols)), rng.normal(size=(size, cols))
    check_scatter(device, dy, ids, start, storage)


@on_devices
@pytest.mark.parametrize("counts", [[32, 32, 32], [31, 2, 31], [64, 1], [1, 64], [33, 31], [200], [20, 100, 8]])
def test_runs_at_the_edges_of_chunks(device, counts, rng):
    ids = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    dy = rng.integers(-8, 8, (len(ids), 3))  # whole numbers: sums are exact
    found = check_scatter(device, dy, ids, np.zeros((len(counts), 3)))
    assert np.array_equal(found, [dy[ids == i].sum(axis=0) for i in range(len(counts))])


@on_devices
@in_storage
@pytest.mark.parametrize("cols", [128, 257])
def test_wide_rows(device, storage, cols, rng):
    check_scatter(device, rng.normal(size=(40, cols)), rng.integers(0, 3, 40), np.zeros((3, cols)), storage)


@on_devices
@pytest.mark.parametrize("padding_idx", [0, 1, 2])
def test_padding_views_and_parameters(device, padding_idx, rng):
    ids = np.repeat([0, 1, 2], 40).astype(np.int32)[::-1]
    dy = rng.normal(size=(6, 120)).astype(np.float32).T
    found = check_scatter(device, dy, ids, np.ones((3, 6)), padding_idx=padding_idx)
    assert (found[padding_idx] == 1).all()
    p = Parameter(gl.to_device(np.zeros((3, 6), np.float32), device))
    p.grad.fill(5)
    p.zero_grad()
    embedding_backward(gl.to_device(dy, device), gl.to_device(ids, device), add_to=p, padding_idx=padding_idx)
    assert_close(p.grad.get() + 1, found)
