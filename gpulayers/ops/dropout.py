"""Dropout: y = x / (1 - p) where the element's random bits say keep, else 0.

Backward is the same function of dy: the bits are drawn again from the key, so no mask is stored.

Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, Dropout, 2014 (here scaled while training).
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import keep_where
from gpulayers.ops.op import Op, row_blocks
from gpulayers.random import WORDS_PER_BLOCK, draw_arguments, keep_threshold, random_bits
from gpulayers.step import Key


def _reference(x: Array, key: Key, p: float) -> Array:
    """x: (rows, cols), a row being one sample, the first of them sample `key.first_sample` of the batch.

    p: probability of 0, 0 <= p <= 1. Returns y like x; a dropped inf or NaN is 0 too.
    """
    if p == 1:
        return zeros(x.shape, x.dtype, like=x)
    xp = array_module(x)
    rows, cols = x.shape
    keep = random_bits(key, cols, rows) >= keep_threshold(p)
    keep = xp.asarray(keep)  # the bits are made in host memory; only a CUDA body can make them where x is
    scaled = (x.astype(wide(x.dtype)) * (1 / (1 - p))).astype(x.dtype)
    return xp.where(keep, scaled, xp.zeros_like(x))


def _cpu(x: Array, key: Key, p: float) -> Array:
    if p == 1:
        return zeros(x.shape, x.dtype, like=x)
    rows, cols = x.shape
    y = empty(x.shape, x.dtype, like=x)
    for block in row_blocks(rows, cols, block=1 << 17):  # starting a generator costs as much as 7000 elements
        bits = random_bits(key._replace(first_sample=key.first_sample + block.start), cols, block.stop - block.start)
        np.multiply(x[block], 1 / (1 - p), out=y[block])
        keep_where(bits >= keep_threshold(p), y[block], y[block])
    return y


THREADS = 256


def _cuda(x: Array, key: Key, p: float) -> Array:
    if keep_threshold(p) >> 32:  # p is 1, or as near to it as bits can tell
        return zeros(x.shape, x.dtype, like=x)
    y = empty(x.shape, x.dtype, like=x)
    args = draw_arguments(key, x.shape[1], p, like=x)
    first = key.first_sample * x.shape[1]
    blocks = -(-(x.size + first % WORDS_PER_BLOCK) // WORDS_PER_BLOCK) if x.size else 0
    args = (y, contiguous(x), *args, np.int64(x.size))
    launch("dropout", "dropout", (-(-blocks // THREADS),), (THREADS,), args, storage=x.dtype)
    return y


dropout = Op("dropout", reference=_reference, cpu=_cpu, cuda=_cuda)
