"""All matrix products of the library: y = a b + bias.

Backward, for y = x W + bias:

    dx     = dy W'
    dW    += x' dy
    dbias += sum of the rows of dy      (ops/sum_rows.py)
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.ops.op import BLOCK, Op, as_rows, row_blocks
from gpulayers.parameter import Parameter


def matmul(a: Array, b: Array, *, bias: Array = None, out: Array = None, add_to: Parameter | None = None) -> Any:
    """a @ b (+ bias), batched over leading dimensions; transposes are given as views.

    a: (..., n, k). b: (..., k, m). bias: (m,). out: (..., n, m), may be a strided view.
    add_to: the product is added to this parameter's gradient instead, `p.grad += a @ b`; then nothing is returned.
    """
    if add_to is None:
        return product(a, b, bias=bias, out=out)
    add_to.contribute(Product(a, b))
    return None


class Product(NamedTuple):
    """a @ b as a contribution to a gradient. a: (n, k). b: (k, m)."""

    a: Array
    b: Array

    def add(self, grad: Array, is_zero: bool) -> None:
        a, b = self
        if is_zero:
            product(a, b, out=grad)
        elif type(grad) is np.ndarray and grad.size > PIECE and len(a) == len(grad):
            for rows in row_blocks(len(grad), grad.shape[1], PIECE):
                grad[rows] += product(a[rows], b)
        else:
            grad += product(a, b)

    def rows(self, rows: slice) -> "Product":
        """The part for these rows of the gradient."""
        return Product(self.a[rows], self.b)


PIECE = 1 << 20  # elements of a gradient that are added in one go: the product of a table's takes 4 MB, not all of it


def _reference(a: Array, b: Array, *, bias: Array = None, out: Array = None) -> Array:
    xp = array_module(a, b, bias, out)
    y = xp.matmul(a, b)
    if bias is not None:
        y = y + bias
    if out is None:
        return y.astype(np.result_type(a.dtype, b.dtype), copy=False)  # NumPy's product of bfloat16 is float32
    out[...] = y
    return out


# Rows of a wide product that BLAS gets at once. OpenBLAS copies so much of one operand into a buffer of each thread
# that the gradient of a table of 50257 x 768 took 51 MB more on two threads; in pieces it takes as long, and 4 MB.
# Up to 256 columns it copies little.
TALL, WIDE = 1 << 12, 256


def _cpu(a: Array, b: Array, *, bias: Array = None, out: Array = None) -> Array:
    if a.ndim > 2 and b.ndim == 2 and out is None and a.flags.c_contiguous:
        return _cpu(as_rows(a), b, bias=bias).reshape(*a.shape[:-1], b.shape[-1])  # one large product, not many
    if out is None:
        batch = () if a.ndim == b.ndim == 2 else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        dtype = a.dtype if a.dtype == b.dtype else np.result_type(a, b)
        out = empty((*batch, a.shape[-2], b.shape[-1]), dtype, like=a)
    touch_blas_buffer()
    if out.ndim == 2 and len(out) > TALL and out.shape[1] > WIDE:
        for rows in row_blocks(len(out), 1, TALL):
            np.matmul(a[rows], b, out=out[rows])
    else:
        np.matmul(a, b, out=out)
    if bias is not None:
        _add_bias(out, bias)
    return out


@functools.cache
def touch_blas_buffer() -> None:
    """One middling product, 2 ms, once: without it small ones may run at a quarter of their speed for ever.

    OpenBLAS copies operands into a buffer of its own and prefetches past the end of what it copied. If the page there
    was never touched, every such prefetch walks the page tables in vain, which is slow, most of all in a virtual
    machine: (512, 256) @ (256, 64) ran at 9.6 GFLOP/s in place of 35, a step of a small GPT took 1.4 times as long.
    """
    np.matmul(np.ones((64, 384), np.float32), np.ones((384, 512), np.float32))


def _add_bias(y: np.ndarray, bias: np.ndarray) -> None:
    if y.ndim != 2 or y.size <= BLOCK:
        y += bias
        return
    for block in row_blocks(*y.shape):  # the block just written is not in cache, but one pass is all it costs
        y[block] += bias


def _cuda(a: Array, b: Array, *, bias: Array = None, out: Array = None) -> Array:
    """CuPy's product, with what it lacks: it refuses bfloat16, and a batch of float16 may come out as float32.

    It writes into `out` where that is one piece of memory; into a strided view its result is copied.
    """
    xp, dtype = array_module(a, b, bias, out), a.dtype
    if dtype.name == "bfloat16":
        a, b = a.astype(np.float32), b.astype(np.float32)
    if out is not None and out.flags.c_contiguous and out.dtype == a.dtype == b.dtype:
        y = xp.matmul(a, b, out=out)
    else:
        y = xp.matmul(a, b)
    if bias is not None:
        y += bias.astype(y.dtype, copy=False)  # matmul has just made y
    if out is None:
        return y.astype(dtype, copy=False)
    if y is not out:
        out[...] = y
    return out


product = Op("matmul", reference=_reference, cpu=_cpu, cuda=_cuda)
