"""Class ids as targets: what is checked of them, how many count, and the form in which ops take them."""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, is_floating


def check_ids(who: str, targets: Array) -> None:
    if targets.dtype.kind not in "iu":
        raise TypeError(f"{who} takes integer targets, got {targets.dtype}")


def check_range(who: str, targets: Array, classes: int, ignore_index: int) -> None:
    """ValueError naming row, value and range. It waits for the device."""
    bad = (targets != ignore_index) & ((targets < 0) | (targets >= classes))
    if bad.any():
        row = tuple(int(i) for i in array_module(targets).argwhere(bad)[0])
        raise ValueError(
            f"{who}: target {targets[row]} in row {row[0] if len(row) == 1 else row} is outside 0..{classes - 1} "
            f"(and is not ignore_index, {ignore_index})"
        )


def count(targets: Array, ignore_index: int, weight: Array, dtype: np.dtype) -> Any:
    """The number of targets that are not ignored, or the sum of their weights."""
    xp = array_module(targets, weight)
    counted = targets != ignore_index
    if weight is None or weight.size == 0:  # without classes every target is ignored
        return counted.sum(dtype=dtype)
    ids = xp.where(counted, targets, 0)
    return xp.where(counted, weight[ids], 0).sum(dtype=dtype)


def as_ids(targets: Array) -> Array:
    """(rows,) int64."""
    ids = targets.reshape(targets.size)
    if ids.dtype == np.uint64:  # 2^64 - 100 is not -100
        ids = array_module(ids).minimum(ids, np.uint64(np.iinfo(np.int64).max))
    return ids.astype(np.int64, copy=False)


def check_class_weight(who: str, weight: Array, classes: int) -> None:
    if weight is not None and (weight.shape != (classes,) or not is_floating(weight.dtype)):
        raise ValueError(f"{who} takes a floating weight ({classes},), got {weight.dtype} {weight.shape}")
