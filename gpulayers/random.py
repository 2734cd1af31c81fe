"""Counter-based random bits: Philox4x64-10, as `numpy.random.Philox` makes them.

Block i of a stream is four 64-bit words, read here as eight 32-bit words (low half first), and comes from counter
i + 1 under the 128-bit key (seed, step * 2^24 + call). Element e of an array takes word e % 8 of block e // 8, where
e counts from the first sample of the whole batch, so its bits depend on nothing but (seed, step, call, e).

Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

import functools
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, is_array
from gpulayers.step import Key

WORDS_PER_BLOCK = 8
CALL_BITS = 24


def philox(key: Key, block: int) -> np.random.Philox:
    """NumPy's generator whose next block is block number `block` of the stream `key`."""
    _check_call(key)
    step = int(key.step[0]) if is_array(key.step) else key.step
    words = np.array([key.seed, step << CALL_BITS | key.call], np.uint64)
    return np.random.Philox(key=words, counter=np.array([block, 0, 0, 0], np.uint64))


def _check_call(key: Key) -> None:
    if key.call >= 1 << CALL_BITS:
        raise ValueError(f"random: more than 2^{CALL_BITS} draws in one pass")


def random_bits(key: Key, row_size: int, rows: int) -> np.ndarray:
    """32 random bits for each element of (rows, row_size), rows being samples from `key.first_sample` on.

    Returns uint32, shape (rows, row_size), in host memory.
    """
    first = key.first_sample * row_size
    block, skip = divmod(first, WORDS_PER_BLOCK)
    words = skip + rows * row_size
    raw = philox(key, block).random_raw(-(-words // WORDS_PER_BLOCK) * 4)  # a block is 4 words of 64 bits
    return raw.astype("<u8", copy=False).view("<u4")[skip:words].reshape(rows, row_size)


def keep_threshold(p: float) -> int:
    """An element is dropped where its 32 bits are below this: round(p * 2^32)."""
    return round(p * (1 << 32))


def draw_arguments(key: Key, row_size: int, p: float, like: Array) -> tuple[Any, ...]:
    """What a kernel that drops elements is told, in the order of `make_draw` in kernels/philox.cuh.

    row_size: elements of one sample. like: an array on the kernel's device.
    """
    _check_call(key)
    threshold = min(keep_threshold(p), (1 << 32) - 1)
    return (
        np.uint64(key.seed), device_step(key.step, like), np.uint32(key.call), np.int64(key.first_sample * row_size),
        np.uint32(threshold), np.float32(1 / (1 - p)),
    )  # fmt: skip


def device_step(step: int | Array, like: Array) -> Array:
    """`step` in one number of device memory, where kernels read it, so that it is no constant of a captured graph.

    What is in device memory already is itself. A number is put there once for each step, not for each draw. Streams
    do not share it: nothing would order one's use after the other's writing.
    """
    xp = array_module(like, step if is_array(step) else None)
    if is_array(step):
        return step
    return _device_step(xp, like.device.id, xp.cuda.get_current_stream().ptr, step)


@functools.lru_cache(maxsize=16)
def _device_step(xp: Any, device: int, stream: int, step: int) -> Array:
    return xp.full(1, step, np.uint64)
