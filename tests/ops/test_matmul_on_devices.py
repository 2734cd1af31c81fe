import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.ops.matmul import PIECE, TALL, WIDE, product
from gpulayers.ops.matmul import matmul as multiply
from gpulayers.parameter import Parameter


@on_devices
@in_storage
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_against_the_reference(device, storage, bias, batch, rng):
    a, b = (rng.normal(size=(*batch, *shape)).astype(np.float32) for shape in ((5, 33), (33, 7)))
    added = rng.normal(size=7).astype(np.float32) if bias else None
    (y,) = check_kernel(product, device, a, b, bias=added, storage=storage, factor=4)  # sums of 33 products
    assert y.dtype == storage


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_into_memory_of_its_own_without_a_copy(batch, storage, rng, monkeypatch):
    """cuBLAS writes where it is told to; a strided view is a copy more."""
    xp, given = gl.use("emulated"), []
    a, b = (gl.to_device(rng.normal(size=(*batch, *s)).astype(storage), "emulated") for s in ((5, 33), (33, 7)))
    matmul = xp.matmul

    def recorded(*args, out=None):
        given.append(out)
        return matmul(*args, out=out)

    monkeypatch.setattr(xp, "matmul", recorded)
    wanted = product(a, b)
    for out, written in (
        (xp.empty((*batch, 5, 7), storage), True),
        (xp.empty((*batch, 7, 5), storage).swapaxes(-1, -2), False),
        (xp.empty((*batch, 5, 7), {"float32": "float16", "float16": "float32"}[storage]), False),
    ):
        assert product(a, b, out=out) is out
        assert np.array_equal(out.get(), wanted.get().astype(out.dtype))
        assert (given[-1] is out) == written
    p = Parameter(xp.ones((5, 7), np.float32))
    flat, more = a.astype(np.float32).reshape(-1, 33)[:5], b.astype(np.float32).reshape(-1, 7)[:33]
    p.zero_grad()
    multiply(flat, more, add_to=p)
    assert given[-1] is p._grad
    multiply(flat, more, add_to=p)
    assert_close(p.grad.get(), 2 * (flat.get() @ more.get()))


@pytest.mark.parametrize("rows", [TALL - 1, TALL, TALL + 1, 2 * TALL + 3])
def test_tall_products_in_pieces(rows, rng):
    """A table's gradient; BLAS gets it piece by piece, from any layout, into strided memory too."""
    a, b = rng.normal(size=(7, rows)).astype(np.float32), rng.normal(size=(7, WIDE + 1)).astype(np.float32)
    wanted, bias = a.T.astype(np.float64) @ b, rng.normal(size=WIDE + 1).astype(np.float32)
    assert_close(product(a.T, b), wanted)
    assert_close(product(np.ascontiguousarray(a.T), b, bias=bias), wanted + bias)
    out = np.zeros((rows, 2 * (WIDE + 1)), np.float32)
    product(a.T, b, out=out[:, ::2])
    assert_close(out[:, ::2], wanted)
    assert not out[:, 1::2].any()


def test_a_large_gradient_is_added_in_pieces(rng):
    a, b = rng.normal(size=(3, 1500)).astype(np.float32), rng.normal(size=(3, 801)).astype(np.float32)
    p = Parameter(np.zeros((1500, 801), np.float32))
    assert p.data.size > PIECE
    multiply(a.T, b, add_to=p)
    multiply(2 * a.T, b, add_to=p)
    assert_close(p.grad, 3 * (a.T.astype(np.float64) @ b))


def test_a_refused_product_leaves_no_gradient():
    """What is in the gradient's memory before it is first written must not pass for one."""
    p = Parameter(np.ones((5, 7), np.float32))
    p.add_grad(np.full((5, 7), np.nan, np.float32))
    p.zero_grad()
    for wrong in (np.ones((4, 7)), np.ones((3, 7), np.float32)):
        with pytest.raises((TypeError, ValueError)):
            multiply(np.ones((5, 4), np.float32), wrong, add_to=p)
        assert not p.grad.any()


@on_devices
@in_storage
def test_transposed_and_nothing(device, storage, rng):
    a = rng.normal(size=(33, 5)).astype(np.float32)
    check_kernel(product, device, a.T, a, storage=storage, factor=4)
    check_kernel(product, device, a[:0], a.T, storage=storage)
    check_kernel(product, device, a.T[:, :0], a[:0], storage=storage)
