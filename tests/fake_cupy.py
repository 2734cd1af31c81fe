"""A tiny stand-in for CuPy: arrays of another module that refuse to meet NumPy's, as CuPy's do."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


class ndarray:  # the name that CuPy's class has
    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:  # shape, dtype, ndim, size
        return getattr(self.value, name)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __getitem__(self, index: Any) -> "ndarray":
        return ndarray(self.value[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError("a NumPy array met a CuPy array")
        self.value[index] = value.value if isinstance(value, ndarray) else value

    def reshape(self, *shape: Any) -> "ndarray":
        return ndarray(self.value.reshape(*shape))

    def astype(self, dtype: Any) -> "ndarray":
        return ndarray(self.value.astype(dtype))

    def fill(self, value: float) -> None:
        self.value.fill(value)

    def get(self) -> np.ndarray:
        return self.value.copy()


ndarray.__module__ = "cupy"


def install(monkeypatch: pytest.MonkeyPatch, devices: int = 1) -> Any:
    """Put the stand-in where `import cupy` finds it, for one test."""
    from gpulayers.cuda import import_cupy

    cupy: Any = ModuleType("cupy")
    cupy.ndarray = ndarray
    cupy.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))
    cupy.zeros = lambda shape: np.zeros(shape)  # the first call on the device, only to see that it answers
    cupy.asarray = lambda x: x if isinstance(x, ndarray) else ndarray(np.array(x))
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: devices))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    import_cupy.cache_clear()
    return cupy
