"""What is needed around a model, on the arrays of any device: `pad_sequences`, `one_hot`, `top_k`.

>>> ids, lengths = pad_sequences([[5, 6, 7], [8]])             # (2, 3), (2,)
>>> y = attention(x, hide=padding_mask(lengths))
>>> values, indices = top_k(logits, 5)                         # (B, T, 5) both
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.backend import Array, array_module, is_array, is_floating, zeros
from gpulayers.layers.layer import check_choice, check_flags, check_integer
from gpulayers.ops.embedding import check_ids, check_integers


def pad_sequences(
    sequences: Sequence[Any],
    padding_value: float = 0,
    *,
    padding_side: str = "right",
    size: int | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Array, Array]:
    """Sequences of unequal length side by side: (B, S, ...) and their lengths (B,) int64, for `padding_mask`.

    sequences: lists of numbers or arrays (length, ...) that differ in the first axis only, of one device. size: S, by
    default the largest length. padding_side: "right" or "left". dtype: by default the sequences' own, int64 for none.
    PyTorch's `pad_sequence` with batch_first=True; it leaves the lengths to you.

    Raises ValueError for a sequence longer than `size`, for shapes that do not fit together or an impossible
    padding_value, TypeError for what is no sequence of numbers.
    """
    check_choice("pad_sequences", ("right", "left"), padding_side=padding_side)
    arrays = [s if is_array(s) else _numbers(s, i) for i, s in enumerate(sequences)]
    xp = array_module(*arrays)
    for i, array in enumerate(arrays):
        if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
            inner = ", ".join(map(str, arrays[0].shape[1:]))
            raise ValueError(f"pad_sequences: sequence {i} has shape {array.shape}, the first one (length, {inner})")
    longest = max((len(array) for array in arrays), default=0)
    if size is not None:
        check_integer("pad_sequences", size=size)
        if size < longest:
            raise ValueError(f"pad_sequences: size is {size}, and a sequence has {longest} steps")
    filled = [array for array in arrays if array.size] or arrays
    kind = np.dtype(dtype) if dtype is not None else np.result_type(*filled) if filled else np.dtype(np.int64)
    if kind.kind in "iu" and not _fits(padding_value, kind):
        raise ValueError(f"pad_sequences: padding_value must be {kind}, got {padding_value!r}")
    rest = arrays[0].shape[1:] if arrays else ()
    S = longest if size is None else size
    padded = xp.full((len(arrays), S, *rest), padding_value, kind)  # (B, S, ...)
    for row, array in zip(padded, arrays, strict=True):
        row[slice(S - len(array), S) if padding_side == "left" else slice(len(array))] = array
    return padded, xp.asarray(np.array([len(array) for array in arrays], np.int64))


def _numbers(sequence: Any, i: int) -> np.ndarray:
    try:
        array = np.asarray(sequence)
    except ValueError:  # rows of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"pad_sequences: sequence {i} must be an array or a list of numbers, got {sequence!r}")
    return array


def _fits(value: Any, kind: np.dtype) -> bool:
    return value == int(value) and np.iinfo(kind).min <= value <= np.iinfo(kind).max


def one_hot(ids: Array, num_classes: int = -1, *, dtype: DTypeLike = np.int64) -> Array:
    """1 at the place of each id, 0 elsewhere: (...) integers -> (..., num_classes).

    num_classes: -1 for the largest id + 1. dtype: PyTorch's int64; "float32" for class probabilities. On a GPU it waits
    for the device, to check the ids.

    Raises TypeError for ids that are no integers, ValueError for one outside 0..num_classes - 1, naming its place.
    """
    check_integers(ids, "one_hot")
    check_integer("one_hot", num_classes=num_classes)
    if num_classes < 1 and num_classes != -1:
        raise ValueError(f"one_hot: num_classes must be at least 1, or -1 for the largest id + 1, got {num_classes}")
    if num_classes == -1:
        if not ids.size:
            raise ValueError("one_hot: without ids there is no largest one: give num_classes")
        num_classes = max(int(ids.max()), 0) + 1
    check_ids(ids, num_classes, "one_hot")
    return (ids[..., None] == array_module(ids).arange(num_classes)).astype(dtype)


def top_k(x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """(values, indices) of the k largest (or smallest) elements along an axis, the first the largest (smallest).

    x: (..., n, ...). values: (..., k, ...), the dtype of x. indices: the same shape, int64. Of equal elements the one
    with the lower index comes first, on every device; PyTorch promises no order. NaN is larger than all numbers.
    It sorts the whole axis. `top_k_backward` carries a gradient of the values back.

    Raises TypeError for what cannot be ordered, ValueError for k outside 0..n or an axis that x does not have.
    """
    if not is_array(x) or not (x.dtype.kind in "iu" or is_floating(x.dtype)):
        raise TypeError(f"top_k takes an array of numbers, got {x.dtype if is_array(x) else type(x).__name__}")
    check_integer("top_k", k=k, axis=axis)
    check_flags("top_k", largest=largest)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"top_k: axis must be in {-x.ndim}..{x.ndim - 1} for an input of {x.ndim} axes, got {axis}")
    n = x.shape[axis]
    if not 0 <= k <= n:
        raise ValueError(f"top_k: k must be in 0..{n}, the length of axis {axis}, got {k}")
    xp, rows = array_module(x), x.swapaxes(axis, -1)
    keys = rows.astype(np.float32) if rows.dtype.name == "bfloat16" else rows  # CuPy cannot sort bfloat16
    if (
        largest
    ):  # the stable order of the reversed row, from its end: equal elements come out with the lower index first
        indices = n - 1 - xp.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    else:
        indices = xp.argsort(keys, axis=-1, kind="stable")[..., :k]
    values = xp.take_along_axis(rows, indices, axis=-1)
    return values.swapaxes(axis, -1), indices.astype(np.int64, copy=False).swapaxes(axis, -1)


def top_k_backward(dvalues: Array, indices: Array, n: int, axis: int = -1) -> Array:
    """dx (..., n, ...): the gradient of the values at the places that they came from, 0 elsewhere.

    Raises ValueError unless dvalues has the shape of the indices, TypeError for another dtype.
    """
    if not is_array(dvalues) or not is_floating(dvalues.dtype):
        raise TypeError("top_k_backward takes a floating gradient of the values")
    if dvalues.shape != indices.shape:
        raise ValueError(f"top_k_backward takes a gradient of shape {indices.shape}, got {dvalues.shape}")
    xp, at, d = array_module(dvalues, indices), indices.swapaxes(axis, -1), dvalues.swapaxes(axis, -1)
    dx = zeros((*d.shape[:-1], n), d.dtype, like=d)
    if d.size:
        xp.put_along_axis(dx, at, d, axis=-1)
    return dx.swapaxes(axis, -1)
