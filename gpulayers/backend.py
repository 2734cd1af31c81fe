"""The array decides: which module an array belongs to, fresh memory beside it, and moves between devices.

There is no global mode. A function looks at the arrays that it was given and works with their module:

>>> xp = array_module(x)          # numpy, cupy, or the emulator's stand-in for cupy
>>> y = empty(x.shape, x.dtype, like=x)

Arrays of different modules never meet silently: `array_module` raises.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.pool import pool_empty

Array = Any  # numpy.ndarray, cupy.ndarray or the emulator's ndarray; CuPy need not be installed

DEVICES = ("numpy", "cupy", "emulated")


def is_array(value: object) -> bool:
    """Whether `value` is an array of a module that the library works with."""
    return isinstance(value, np.ndarray) or module_of(value) is not None


def module_of(value: object) -> ModuleType | None:
    """The module of an array, None for everything else. CuPy is found only if somebody has imported it."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return np
    if (module := getattr(kind, "array_module", None)) is not None:  # the emulator's arrays carry theirs
        return module
    if kind.__module__.partition(".")[0] == "cupy" and kind.__name__ == "ndarray":
        return sys.modules["cupy"]
    return None


def array_module(*arrays: Array) -> Any:
    """The one module that all `arrays` belong to; None among them is passed over.

    Raises TypeError when modules are mixed, or when something is not an array at all.
    """
    found: ModuleType | None = None
    for array in arrays:
        if array is None:
            continue
        module = module_of(array)
        if module is None:
            raise TypeError(f"expected an array of numpy or cupy, got {type(array).__name__}")
        if found is not None and module is not found:
            raise TypeError(
                f"arrays of {found.__name__} and {module.__name__} meet in one call; "
                "move one of them: gpulayers.to_device(array, device) or layer.to(device)"
            )
        found = module
    return found or np


def device_of(array: Array) -> str:
    """'numpy', 'cupy' or 'emulated'."""
    module = array_module(array)
    return module.__name__ if module.__name__ in ("numpy", "cupy") else "emulated"


def use(device: str) -> Any:
    """The module with which a script makes its arrays; the only thing to change for a GPU.

    >>> xp = gpulayers.use("numpy")       # or "cupy"
    >>> ids = xp.asarray([[1, 2, 3]])

    Raises ValueError for a name that is no device, `gpulayers.cuda.GPUUnavailable` (one sentence with the reason
    and the remedy) where there is no GPU.
    """
    if device == "numpy":
        return np
    if device == "cupy":
        from gpulayers.cuda import import_cupy

        return import_cupy()
    if device == "emulated":
        from gpulayers.cuda import import_emulated

        return import_emulated()
    raise ValueError(f"unknown device {device!r}; the devices are {', '.join(DEVICES)}")


def empty(shape: int | tuple[int, ...], dtype: DTypeLike, like: Array = None) -> Array:
    """An uninitialised C-ordered array on the device of `like`, from a pool whose blocks are used again.

    A block goes back to the pool when the last array or view on it dies.
    """
    xp = np if type(like) is np.ndarray else array_module(like)
    if xp is np:
        return pool_empty(shape, np.dtype(dtype))
    return xp.empty(shape, dtype)  # CuPy has a pool of its own


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike, like: Array = None) -> Array:
    """`empty`, filled with 0."""
    array = empty(shape, dtype, like)
    array.fill(0)
    return array


def to_device(array: Array, device: str) -> Array:
    """`array` on `device`: itself if it is there already, a copy otherwise."""
    if device_of(array) == device:
        return array
    xp = use(device)
    if not isinstance(array, np.ndarray):
        array = array.get()
    return array if xp is np else xp.asarray(array)


def to_numpy(array: Array) -> np.ndarray:
    """`array` in host memory: itself if it is a NumPy array, a copy otherwise."""
    return to_device(array, "numpy")


def is_floating(dtype: DTypeLike) -> bool:
    """Whether `dtype` is a floating type, bfloat16 (ml_dtypes) included."""
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or dtype.name == "bfloat16"


def wide(dtype: DTypeLike) -> np.dtype:
    """The type in which statistics and losses of `dtype` arrays are kept: float32 or wider."""
    dtype = np.dtype(dtype)
    return dtype if dtype == np.float64 else np.dtype(np.float32)
