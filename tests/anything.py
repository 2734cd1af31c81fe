"""What the property tests draw from: shapes, values, and arrays in any layout that a view can have."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpulayers.backend import array_module
from gpulayers.verify.case import Arg

SIZES = st.sampled_from([1, 2, 3, 5, 7, 4, 6, 0, 33])  # the first are what a failure is reduced to
LAYOUTS = ("C", "F", "reversed", "every second", "inside a wider one", "one row for all", "C")


class Draw:
    """One example: hypothesis chooses sizes, options and layouts, a generator with a chosen seed the values."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        # Not the seed alone: contract.py draws dy from generators with small seeds, and dy like x has a gradient of 0.
        self.rng = np.random.default_rng([data.draw(st.integers(0, 1 << 32), label="seed"), 1])

    def size(self, name: str, least: int = 0, most: int = 33) -> int:
        return self.data.draw(SIZES.filter(lambda n: least <= n <= most), label=name)

    def sizes(self, names: str, least: int = 0, most: int = 7) -> list[int]:
        return [self.size(name, least, most) for name in names]

    def flag(self, name: str) -> bool:
        return self.data.draw(st.booleans(), label=name)

    def pick(self, name: str, *choices: Any) -> Any:
        return choices[self.data.draw(st.integers(0, len(choices) - 1), label=name)]

    def x(self, *shape: int, std: float = 1.0, mean: float = 0.0, same: bool = True) -> np.ndarray:
        """float32, normal. same: sometimes with all rows the same, so that the layout may be a stride of 0."""
        x = self.rng.normal(mean, std, shape).astype(np.float32)
        return np.repeat(x[:1], len(x), axis=0) if same and len(x) and self.flag("one row") else x

    def away(self, *shape: int, kinks: tuple[float, ...] = (0,), std: float = 2.0) -> np.ndarray:
        """Where a function with kinks has a derivative, and no finite difference crosses one."""
        x = self.x(*shape, std=std)
        for kink in kinks:
            x = np.where(np.abs(x - kink) < 0.02, np.float32(kink + 0.1), x)
        return x

    def ids(self, shape: tuple[int, ...], size: int) -> np.ndarray:
        """Integers of any width in 0..size - 1."""
        dtype = self.pick("ids", np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32, np.uint64)
        return self.rng.integers(0, size, shape).astype(dtype)

    def mask(self, *shape: int) -> np.ndarray | None:
        """None, or a boolean mask that broadcasts to the shape: nothing hidden, some, or all."""
        if self.flag("no mask"):
            return None
        axes = [n if self.flag("axis of the mask") else 1 for n in shape]
        return self.rng.random(axes) < self.pick("hidden", 0.3, 0.0, 0.7, 1.0)

    def lay(self, given: Any) -> Any:
        """The same values, as an array of a layout drawn for it.

        What the library makes itself stays in one piece, as kernels demand in a sentence of their own: vectors, `exact`
        statistics and controls, and what is written.
        """
        arg = given if isinstance(given, Arg) else Arg(given)
        array = arg.array
        if arg.exact or arg.written or arg.view is not None or not isinstance(array, np.ndarray):
            return given
        if array.ndim < 2 and (array.dtype.kind == "f" or array.ndim == 0):
            return given
        base, view = layout(arg.array, self.pick("layout", *LAYOUTS))
        return arg._replace(array=base, view=view)

    def laid(self, array: np.ndarray) -> np.ndarray:
        """`lay` for a plain NumPy array."""
        arg = self.lay(array)
        return arg.view(arg.array) if isinstance(arg, Arg) and arg.view is not None else array


def layout(array: np.ndarray, name: str) -> tuple[np.ndarray, Any]:
    """(base, view) such that view(base) has the values of `array`, on every device."""
    shape = array.shape
    if name == "F":
        return np.ascontiguousarray(array.T), lambda a: a.T
    if name == "reversed":
        return np.ascontiguousarray(array[::-1]), lambda a: a[::-1]
    if name == "every second":
        return np.repeat(array, 2, axis=-1), lambda a: a[..., ::2]
    if name == "inside a wider one":
        wider = np.zeros((*shape[:-1], shape[-1] + 3), array.dtype)
        wider[..., 1:-2] = array
        return wider, lambda a: a[..., 1:-2]
    if name == "one row for all" and len(array) and (array[:1] == array).all():
        return array[:1].copy(), lambda a: array_module(a).broadcast_to(a, shape)
    return array, None
