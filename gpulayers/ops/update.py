"""What the update ops share: the gradient that a parameter moves along, and the checks before a kernel runs.

    g = clip(scale gradient, -limit, limit) + weight_decay p + l1 sign(p)

A parameter in float16 or bfloat16 is trained through its float32 master: then p is the master, and the update writes
the parameter itself, `copy`, in the same pass.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module
from gpulayers.cuda import launch
from gpulayers.ops.update_control import CONTROL_SIZE, Control


def gradient_reference(p: Array, g: Array, c: Control, weight_decay: float, l1: float) -> Array:
    """clip(scale g, -limit, limit) + weight_decay p + l1 sign(p), float32 or wider. A skipped step sees 0, not NaN."""
    xp = array_module(p, g)
    g = xp.where(c.apply > 0, g, 0).astype(p.dtype)
    g = xp.clip(g * c.scale, -c.limit, c.limit)
    return g + weight_decay * p + l1 * xp.sign(p)


def gradient_cpu(
    out: np.ndarray, p: np.ndarray, g: np.ndarray, c: Control, weight_decay: float, l1: float, factor: float = 1.0
) -> None:
    """The same times `factor` into `out`. All terms are linear, so the factor costs no pass of its own."""
    number = out.dtype.type
    np.multiply(g, number(c.scale * factor), out=out)
    if c.limit < math.inf:
        np.clip(out, number(-c.limit * factor), number(c.limit * factor), out=out)
    if weight_decay:
        out += p * number(weight_decay * factor)
    if l1:
        out += np.sign(p) * number(l1 * factor)


def finish_reference(p: Array, g: Array, apply: Array, copy: Array, clear: bool) -> None:
    """After the update of p: its copy, and the gradient of a skipped step too, for what is not finite must not stay."""
    if copy is not None:
        copy[...] = array_module(p).where(apply, p.astype(copy.dtype), copy)
    if clear:
        g.fill(0)


def finish_block(p: Array, g: Array, copy: Array, block: slice, clear: bool) -> None:
    """The same for a block that was just updated, while it is in cache. copy: the whole of it."""
    if copy is not None:
        copy[block] = p
    if clear:
        g.fill(0)


def clear_skipped(g: Array, clear: bool) -> None:
    if clear:
        g.fill(0)


class Table(NamedTuple):
    """Stretches of flat memory and their settings, on the device, for one launch over a whole model.

    places: (stretches, 3) int64, in order: first element, last one + 1, row of settings; what lies between two of them
    is not touched. settings: (rows, 12) float32: row of control, lr_scale, weight_decay, l1, decoupled, then the rule's
    numbers, as its kernel takes them. size: the end of the last stretch.
    """

    places: Array
    settings: Array
    size: int


SETTINGS = 12  # as in kernels/update_control.cuh


def settings_row(
    control: int, lr_scale: float, weight_decay: float, l1: float, decoupled: bool, numbers: tuple[float, ...]
) -> np.ndarray:
    """One row of `Table.settings`."""
    row = np.zeros(SETTINGS, np.float32)
    row[: 5 + len(numbers)] = control, lr_scale, weight_decay, l1, decoupled, *numbers
    return row


def launch_model(
    op: str, outputs: tuple[Array, ...], copy: Array, g: Array, control: Array, table: Table, *more: Any
) -> None:
    """kernels/<op>.cu over all stretches of `table`: what `launch_update` does for one. control: (rows, 8).

    more: what the kernel takes between the table and `clear`.
    """
    p = outputs[0]
    function, storage, blocks = _function(f"{op}_model", table.size, g, copy)
    places = (control, table.settings, table.places, np.int32(len(table.places)))
    args = (*outputs, copy, g, *places, *more, np.int32(0), np.int64(min(table.size, p.size)))
    launch(op, function, (blocks,), (THREADS,), args, storage=storage)


def _function(name: str, size: int, g: Array, copy: Array) -> tuple[str, np.dtype, int]:
    """(name of the kernel, storage type, blocks)."""
    storage = g.dtype if copy is None else copy.dtype
    if g.dtype not in (storage, np.float32):
        raise TypeError(f"{name}: a {storage} copy takes a gradient of the same type or float32, got {g.dtype}")
    function = name if g.dtype == storage else f"{name}_float_gradient"
    return function, storage, -(-size // (THREADS * 16 // storage.itemsize))


THREADS = 256  # of a block; each takes 16 bytes of the storage type


def launch_update(
    op: str, outputs: tuple[Array, ...], copy: Array, g: Array, control: Array, scalars: tuple[Any, ...]
) -> None:
    """kernels/<op>.cu over outputs (p and the moments, None where there is none), copy, g, control and the scalars.

    Raises TypeError or ValueError for arrays that the kernel does not take.
    """
    p = outputs[0]
    for what, array in [*((f"array {i}", a) for i, a in enumerate(outputs)), ("control", control)]:
        if array is not None and array.dtype != np.float32:
            raise TypeError(f"{op}: {what} must be float32, got {array.dtype}")
    if any(a is not None and a.shape != (p.size,) for a in (*outputs, copy, g)) or control.shape != (CONTROL_SIZE,):
        shapes = [a.shape for a in (*outputs, copy, g, control) if a is not None]
        raise ValueError(f"{op} takes arrays of one length and a control array of {CONTROL_SIZE}, got {shapes}")
    function, storage, blocks = _function(op, p.size, g, copy)
    args = (*outputs, copy, g, control, *scalars, np.int64(p.size))
    launch(op, function, (blocks,), (THREADS,), args, storage=storage)
