"""How an update kernel, which writes its arguments, is held to its reference."""

from typing import Any

import numpy as np
from devices import STORAGE
from tolerances import assert_close

import gpulayers as gl
from gpulayers.backend import Array
from gpulayers.ops.op import Op
from gpulayers.ops.update_control import Control

STEP = Control(apply=1, scale=0.5, limit=np.inf, rate=1e-3, correction1=0.271, correction2=0.002997001)
SKIP = STEP._replace(apply=0)  # the other numbers are there, and are not looked at
SIZES = [1, 2, 5, 31, 33, 1023, 2049]


def placed(device: str, array: np.ndarray | None, start: int = 0) -> tuple[Array, Array]:
    """(the array on the device as elements start ... of a longer one, the longer one); its other elements are 7."""
    if array is None:
        return None, None
    longer = np.full(array.size + start + 9, 7).astype(array.dtype)
    longer[start : start + array.size] = array
    there = gl.to_device(longer, device)
    return there[start : start + array.size], there


def check_update(
    op: Op, device: str, state: list[np.ndarray | None], g: np.ndarray, control: Control, rule: dict[str, Any],
    *, storage: str = "float32", gradient: str | None = None, start: int | tuple[int, ...] = 0, clear: bool = False,
) -> list[np.ndarray | None]:  # fmt: skip
    """op.cuda on `device` against the float64 reference; returns the new state: p and the moments.

    state: float32. g is stored as `gradient`, by default as `storage`; below float32 there is a copy. start: of every
    array, or of each in turn (state, g, copy), inside a longer one, whose other elements must stay. A second run must
    give the same bits.
    """
    g = g.astype(STORAGE[gradient or storage])
    state = [None if a is None else a.copy() for a in state]
    if control.apply and rule.get("l1"):
        state[0][:1] = 0  # its sign is 0: no penalty
    exact = [None if a is None else a.astype(np.float64) for a in state]
    op.reference(*exact, g.astype(np.float64), np.array(control, np.float64), **rule)
    found = []
    for _ in range(2):
        copy = None if storage == "float32" else np.full(g.size, -1).astype(STORAGE[storage])
        arrays = (*state, g, copy)
        starts = (start,) * len(arrays) if isinstance(start, int) else start
        there = [placed(device, a, at) for a, at in zip(arrays, starts, strict=True)]
        views = [view for view, _ in there]
        there_control = gl.to_device(np.array(control, np.float32), device)
        op.cuda(*views[:-1], there_control, **rule, copy=views[-1], clear=clear)
        for (_, whole), at in zip(there, starts, strict=True):
            if whole is not None:
                outside = np.delete(whole.get(), slice(at, at + g.size)).astype(np.float32)
                assert (outside == 7).all(), f"{op.name} wrote beyond its arrays"
        found.append([None if view is None else view.get() for view in views])
    for once, again in zip(*found, strict=True):
        assert (once is None and again is None) or once.tobytes() == again.tobytes(), "another run, other bits"
    *after, gradient_after, copy = found[0]
    assert gradient_after.tobytes() == (np.zeros_like(g) if clear else g).tobytes()
    for new, wanted in zip(after, exact, strict=True):
        if new is not None:
            assert_close(new, wanted, "float32")
    if copy is not None:
        wanted = after[0].astype(copy.dtype) if control.apply else np.full(g.size, -1).astype(copy.dtype)
        assert copy.tobytes() == wanted.tobytes()
    return after
