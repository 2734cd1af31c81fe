"""The stand-in's `ndarray`: CuPy's array class over host memory.

What CuPy refuses is refused here: implicit conversion to NumPy, mixing with `numpy.ndarray`, methods and keywords
that CuPy's class does not have. Results are 0-d arrays where NumPy gives scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from gpulayers.emulator.allocation import Allocation, find
from gpulayers.emulator.memory_pool import MemoryPointer, allocate_array

DTYPE_KINDS = "?biufc"
NO_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


def check_dtype(dtype: np.dtype) -> np.dtype:
    """Only numbers and booleans live on the device."""
    if dtype.kind not in DTYPE_KINDS and dtype.name != "bfloat16":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def unwrap(value: Any) -> Any:
    """Host arrays for our arrays, also inside tuples, lists and dicts; a `numpy.ndarray` among them is an error."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if type(value) in (tuple, list):
        return type(value)(unwrap(one) for one in value)
    return value


def wrap(value: Any) -> Any:
    """Our arrays for host arrays and scalars: views of device memory stay views, others are moved there."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _wrap_array(np.asarray(value))
    if type(value) in (tuple, list):
        return type(value)(wrap(one) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(wrap(one) for one in value))
    return value


def _wrap_array(host: np.ndarray) -> ndarray:
    allocation = find(host.ctypes.data) if host.size and host.base is not None else None
    return view_of(host, allocation) if allocation is not None else to_device(host)


def view_of(host: np.ndarray, allocation: Allocation) -> ndarray:
    """An array for host memory that lies in a block."""
    array = ndarray.__new__(ndarray)
    array._host, array._block = host, allocation
    return array


def to_device(host: np.ndarray, order: str = "K") -> ndarray:
    """A copy in device memory."""
    check_dtype(host.dtype)
    fortran = order == "F" or (order in "KA" and host.flags.f_contiguous and not host.flags.c_contiguous)
    data, allocation = allocate_array(host.shape, host.dtype.newbyteorder("="), "F" if fortran else "C")
    data[...] = host
    return view_of(data, allocation)


class Flags:
    """Memory layout, as CuPy shows it."""

    def __init__(self, host: np.ndarray) -> None:
        self.c_contiguous, self.f_contiguous = bool(host.flags.c_contiguous), bool(host.flags.f_contiguous)
        self.owndata = host.base is None or not isinstance(host.base, np.ndarray)
        self.fnc = self.f_contiguous and not self.c_contiguous
        self.forc = self.f_contiguous or self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        names = {"C_CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous", "OWNDATA": "owndata"}
        if name not in names:
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return getattr(self, names[name])


class ndarray:
    """An array on the emulated device."""

    array_module: ClassVar[Any] = None  # the module that stands in for cupy; set there
    __array_priority__ = 100
    # As in CuPy: what compares element by element has no hash. To say so is this line; `object` declares a method.
    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("__weakref__", "_block", "_host")
    _host: np.ndarray
    _block: Allocation

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None, strides: Any = None, order: Any = "C"
    ) -> None:
        if memptr is None:
            self._host, self._block = allocate_array(shape, check_dtype(np.dtype(dtype)), order)
            return
        offset, kind = memptr.ptr - memptr.mem.address, check_dtype(np.dtype(dtype))
        self._host = np.ndarray(shape, kind, memptr.mem.data.data, offset, strides, order)
        self._block = memptr.mem

    # Attributes

    @property
    def dtype(self) -> np.dtype:
        return self._host.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._host = self._host.reshape(shape, copy=False)

    @property
    def strides(self) -> tuple[int, ...]:
        return self._host.strides

    @property
    def ndim(self) -> int:
        return self._host.ndim

    @property
    def size(self) -> int:
        return self._host.size

    @property
    def itemsize(self) -> int:
        return self._host.itemsize

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    @property
    def flags(self) -> Flags:
        return Flags(self._host)

    @property
    def data(self) -> MemoryPointer:
        if not self._host.size:
            return MemoryPointer(None, 0)
        return MemoryPointer(self._block, self._host.ctypes.data - self._block.address)

    @property
    def device(self) -> Any:
        return self.array_module.cuda.Device(0)

    @property
    def base(self) -> Any:
        return None if self.flags.owndata else view_of(self._host, self._block)

    @property
    def T(self) -> ndarray:
        return wrap(self._host.T)

    @property
    def mT(self) -> ndarray:
        return wrap(self._host.swapaxes(-1, -2))

    @property
    def real(self) -> ndarray:
        return wrap(np.real(self._host))

    @property
    def imag(self) -> ndarray:
        return wrap(np.imag(self._host))

    # To and from the host

    def get(self, stream: Any = None, order: Any = "C", out: np.ndarray | None = None, blocking: bool = True) -> Any:
        """A copy in host memory."""
        if out is None:
            return self._host.copy(order)
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype or out.shape != self.shape:
            raise TypeError(f"{out.dtype} array of shape {out.shape} cannot be obtained from {self.dtype} {self.shape}")
        out[...] = self._host
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copy from host memory."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        self._host[...] = arr

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return self._host.tobytes(order)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError(NO_IMPLICIT)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __float__(self) -> float:
        return float(self._host)

    def __complex__(self) -> complex:
        return complex(self._host)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[ndarray]:
        return (wrap(row) if isinstance(row, np.ndarray) else self[n] for n, row in enumerate(self._host))

    def __repr__(self) -> str:
        return repr(self._host)

    def __str__(self) -> str:
        return str(self._host)

    def __format__(self, spec: str) -> str:
        return format(self._host, spec) if spec else str(self)

    # Elements

    def __getitem__(self, key: Any) -> ndarray:
        found = self._host[_key(key)]
        if isinstance(found, np.ndarray):
            return wrap(found)
        whole = key if isinstance(key, tuple) else (key,)
        return wrap(self._host[(*_key(whole), ...)])  # an element stays a view

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[_key(key)] = unwrap(value)

    # Protocols of NumPy: numpy.exp(x) and numpy.sum(x) go to the stand-in's functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = getattr(self.array_module, ufunc.__name__, None)
        if method != "__call__" or function is None:
            return NotImplemented
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = out[0] if len(out) == 1 else out
        return function(*inputs, **kwargs)

    def __array_function__(self, func: Callable, types: Any, args: Any, kwargs: Any) -> Any:
        function = getattr(self.array_module, func.__name__, None)
        return NotImplemented if function is None else function(*args, **kwargs)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    # Methods with conventions of their own

    def copy(self, order: str = "C") -> ndarray:
        return to_device(self._host, order)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported yet")
        kind = check_dtype(np.dtype(dtype))
        if not copy and kind == self.dtype:
            return self
        with np.errstate(all="ignore"):  # conversions on the device raise nothing
            return to_device(self._host.astype(kind), order)

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> ndarray:
        result = wrap(self._host.reshape(*shape, order=order))
        return result.copy() if copy else result

    def transpose(self, *axes: Any) -> ndarray:
        return wrap(self._host.transpose(*axes))

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:
        host = self._host.view() if dtype is None else self._host.view(check_dtype(np.dtype(dtype)))
        return view_of(host, self._block)

    def fill(self, value: Any) -> None:
        self._host.fill(unwrap(value))

    def dot(self, b: ndarray, out: ndarray | None = None) -> ndarray:
        return self.array_module.dot(self, b, out)

    def scatter_add(self, slices: Any, value: Any) -> None:
        """`a[slices] += value` with repeated indices added up."""
        np.add.at(self._host, _key(slices), unwrap(value))

    def scatter_max(self, slices: Any, value: Any) -> None:
        """The maximum with `value`, at repeated indices too."""
        np.maximum.at(self._host, _key(slices), unwrap(value))

    def scatter_min(self, slices: Any, value: Any) -> None:
        """The minimum with `value`, at repeated indices too."""
        np.minimum.at(self._host, _key(slices), unwrap(value))


def _key(key: Any) -> Any:
    """An index: our arrays, and host arrays or lists, which CuPy moves to the device by itself."""
    if isinstance(key, ndarray):
        return key._host
    return tuple(_key(one) for one in key) if isinstance(key, tuple) else key
