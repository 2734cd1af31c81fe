"""A stand-in for CuPy: its arrays lie in host memory, and its kernels run in the emulator.

It is imported as `from gpulayers.emulator import cupy`, and never put in the place of the real one. It offers part
of what CuPy offers and nothing else; what CuPy would refuse, it refuses.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpulayers.emulator import cuda as cuda  # "as": part of what the stand-in offers, as the two lists below
from gpulayers.emulator.allocation import POISON_LIMIT
from gpulayers.emulator.array import check_dtype, ndarray, to_device, unwrap, wrap
from gpulayers.emulator.functions import HOST_ONLY, PARAMETERS, VARIADIC, about_dtypes, delegate, variadic
from gpulayers.emulator.functions import astype as astype
from gpulayers.emulator.functions import copyto as copyto
from gpulayers.emulator.functions import einsum as einsum
from gpulayers.emulator.functions import fill_diagonal as fill_diagonal
from gpulayers.emulator.functions import matmul as matmul
from gpulayers.emulator.functions import pad as pad
from gpulayers.emulator.functions import reshape as reshape
from gpulayers.emulator.kernels import RawKernel as RawKernel
from gpulayers.emulator.kernels import RawModule as RawModule
from gpulayers.emulator.memory_pool import MemoryPool, PinnedMemoryPool, default_pool, pinned_pool
from gpulayers.emulator.ufuncs import NAMES, ufunc

__version__ = "14.0.0+emulated"

DTYPES = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "complex64", "complex128", "intp", "dtype", "finfo", "iinfo",
)  # fmt: skip
CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")

for _name in (*DTYPES, *CONSTANTS):
    globals()[_name] = getattr(np, _name)
for _name in NAMES:
    globals()[_name] = ufunc(_name)
for _name, _parameters in PARAMETERS.items():
    globals()[_name] = delegate(_name, _parameters)
for _name in VARIADIC:
    globals()[_name] = variadic(_name)
for _name in HOST_ONLY:
    globals()[_name] = about_dtypes(_name)
bool = np.bool_
ndarray.array_module = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    """Type checkers do not see the functions made above."""
    raise AttributeError(f"the stand-in for CuPy has no attribute {name!r}")


def get_array_module(*args: Any) -> Any:
    """This module if any argument is one of its arrays, else numpy."""
    return ndarray.array_module if any(isinstance(one, ndarray) for one in args) else np


def is_available() -> Any:
    """The emulated device is always there."""
    return True


def get_default_memory_pool() -> MemoryPool:
    """The pool that arrays come from."""
    return default_pool


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    """A pool that is always empty."""
    return pinned_pool


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: Any = True) -> np.ndarray:
    """A copy in host memory."""
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def _host(value: Any) -> Any:
    """What `array` accepts: our arrays, host arrays, numbers, and nested sequences of them."""
    if isinstance(value, ndarray):
        return value._host
    return type(value)(_host(one) for one in value) if type(value) in (list, tuple) else value


def array(
    obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", subok: Any = False, ndmin: int = 0, *,
    blocking: Any = False,
) -> ndarray:  # fmt: skip
    """A new array from host or device data."""
    if isinstance(obj, ndarray) and not copy and ndmin <= obj.ndim and (dtype is None or obj.dtype == np.dtype(dtype)):
        return obj
    host = np.array(_host(obj), dtype=dtype, ndmin=ndmin)
    return to_device(host, order)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: Any = False) -> ndarray:
    """The array itself where it fits, else a new one."""
    if isinstance(a, ndarray) and not copy and (dtype is None or a.dtype == np.dtype(dtype)):
        fits = order in (None, "K", "A") or (a.flags.c_contiguous if order == "C" else a.flags.f_contiguous)
        if fits:
            return a
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested")
    return to_device(np.asarray(_host(a), dtype=dtype), order or "K")


def asanyarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: Any = False) -> ndarray:
    """As asarray."""
    return asarray(a, dtype, order, copy=copy, blocking=blocking)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """The array itself if it is C-contiguous with at least one dimension, else a copy that is."""
    result = asarray(a, dtype, "C")
    return result if result.ndim else result.reshape(1)


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    """The array itself if it is Fortran-contiguous, else a copy that is."""
    return asarray(a, dtype, "F")


def copy(a: ndarray, order: str = "K") -> ndarray:
    """A copy."""
    return a.copy(order)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Poisoned memory: NaN, or -1 in integers."""
    return ndarray(shape, dtype, order=order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """An array of one value."""
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, ndarray) else np.array(fill_value).dtype
    result = empty(shape, dtype, order)
    result._host[...] = unwrap(fill_value)
    return result


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """An array of zeros."""
    result = empty(shape, dtype, order)
    if result.nbytes <= POISON_LIMIT:  # larger blocks are zeros already, in pages that nobody has touched
        result._host[...] = 0
    return result


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """An array of ones."""
    return full(shape, 1, dtype, order)


def _like(a: ndarray, dtype: Any, order: Any, subok: Any, shape: Any) -> ndarray:
    if subok is not None:
        raise TypeError("subok is not supported yet")
    if not isinstance(a, ndarray):
        raise TypeError(f"Unsupported type {type(a)}")
    host = np.empty_like(np.broadcast_to(np.empty((), a.dtype), a.shape) if shape is not None else a._host, dtype=dtype,
                         order=order, shape=shape)  # fmt: skip
    fortran = host.flags.f_contiguous and not host.flags.c_contiguous
    return empty(host.shape, check_dtype(host.dtype), "F" if fortran else "C")


def empty_like(
    prototype: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """Poisoned memory with the shape and dtype of another array."""
    return _like(prototype, dtype, order, subok, shape)


def full_like(
    a: ndarray, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """One value, with the shape and dtype of another array."""
    result = _like(a, dtype, order, subok, shape)
    result._host[...] = unwrap(fill_value)
    return result


def zeros_like(a: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    """Zeros, with the shape and dtype of another array."""
    return full_like(a, 0, dtype, order, subok, shape)


def ones_like(a: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    """Ones, with the shape and dtype of another array."""
    return full_like(a, 1, dtype, order, subok, shape)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    """Evenly spaced numbers."""
    first, last = (0, start) if stop is None else (start, stop)
    return wrap(np.arange(first, last, step, dtype=dtype))


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: Any = True, retstep: Any = False, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from start to stop."""
    return wrap(np.linspace(start, stop, num, endpoint, retstep, dtype, axis))


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: Any = "C") -> ndarray:
    """Ones on a diagonal."""
    return wrap(np.eye(N, M, k, dtype, order))


def identity(n: int, dtype: Any = float) -> ndarray:
    """The identity matrix."""
    return wrap(np.identity(n, dtype))


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> ndarray:
    """Ones at and below a diagonal."""
    return wrap(np.tri(N, M, k, dtype))


def indices(dimensions: Any, dtype: Any = int) -> ndarray:
    """The indices of a grid."""
    return wrap(np.indices(dimensions, dtype))
