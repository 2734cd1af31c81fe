"""Sets of threads. Evenly spaced ones are slices, whose registers NumPy reads and writes without a gather."""

from __future__ import annotations

import numpy as np

Index = slice | np.ndarray


def count(index: Index) -> int:
    """How many threads."""
    if isinstance(index, slice):
        return (index.stop - index.start + index.step - 1) // index.step
    return len(index)


def positions(index: Index) -> np.ndarray:
    """The threads' numbers in the group, ascending."""
    return np.arange(index.start, index.stop, index.step) if isinstance(index, slice) else index


def compact(numbers: np.ndarray) -> Index:
    """A slice where the ascending numbers are evenly spaced, else the numbers themselves."""
    length = len(numbers)
    first, last = int(numbers[0]), int(numbers[-1])
    if length == 1:
        return slice(first, first + 1, 1)
    step = int(numbers[1]) - first
    even = last - first == step * (length - 1) and (length < 3 or bool((np.diff(numbers) == step).all()))
    return slice(first, last + 1, step) if even else numbers


def select(index: Index, mask: np.ndarray) -> Index | None:
    """The threads of `index` for which `mask` holds; None if there are none."""
    chosen = np.flatnonzero(mask)
    if len(chosen) == len(mask):
        return index
    if not len(chosen):
        return None
    if isinstance(index, slice):
        return compact(index.start + index.step * chosen)
    return compact(index[chosen])


def join(parts: list[Index]) -> Index:
    """The union of disjoint sets."""
    if len(parts) == 1:
        return parts[0]
    return compact(np.sort(np.concatenate([positions(part) for part in parts])))


def spread(value: np.ndarray | np.generic, length: int) -> np.ndarray:
    """An operand as an array: registers are arrays already, constants are one value for all threads."""
    return value if isinstance(value, np.ndarray) else np.broadcast_to(value, (length,))
