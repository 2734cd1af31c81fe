"""The stand-in's functions: NumPy's, with the names and parameters that CuPy has, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.emulator.array import ndarray, unwrap, wrap
from gpulayers.emulator.array_operators import call_checker

# name -> parameters that CuPy's function takes, in its order, as far as NumPy's takes them too; behind * by name only
PARAMETERS = {
    "all": "a axis out keepdims", "allclose": "a b rtol atol equal_nan", "amax": "a axis out keepdims",
    "amin": "a axis out keepdims", "any": "a axis out keepdims", "append": "arr values axis",
    "argmax": "a axis * out keepdims", "argmin": "a axis * out keepdims", "argpartition": "a kth axis",
    "argsort": "a axis kind", "argwhere": "a", "around": "a decimals out", "array_equal": "a1 a2 equal_nan",
    "array_split": "ary indices_or_sections axis", "average": "a axis weights returned * keepdims",
    "bincount": "x weights minlength", "broadcast_to": "array shape", "clip": "a a_min a_max out",
    "column_stack": "tup", "compress": "condition a axis out", "concatenate": "tup axis out * dtype casting",
    "concat": "tup axis out * dtype casting", "count_nonzero": "a axis", "cross": "a b axisa axisb axisc axis",
    "cumprod": "a axis dtype out", "cumsum": "a axis dtype out", "delete": "arr indices axis", "diag": "v k",
    "diagonal": "a offset axis1 axis2", "diff": "a n axis prepend append", "digitize": "x bins right",
    "dot": "a b out", "dstack": "tup", "expand_dims": "a axis", "flatnonzero": "a", "flip": "a axis", "fliplr": "a",
    "flipud": "a", "hstack": "tup * dtype casting", "inner": "a b", "interp": "x xp fp left right period",
    "isclose": "a b rtol atol equal_nan", "isin": "element test_elements assume_unique invert", "isscalar": "element",
    "kron": "a b", "matrix_transpose": "x", "max": "a axis out keepdims", "may_share_memory": "a b max_work",
    "mean": "a axis dtype out keepdims", "median": "a axis out overwrite_input keepdims",
    "min": "a axis out keepdims", "moveaxis": "a source destination", "nan_to_num": "x copy nan posinf neginf",
    "nanargmax": "a axis * out keepdims", "nanargmin": "a axis * out keepdims", "nanmax": "a axis out keepdims",
    "nanmean": "a axis dtype out keepdims", "nanmin": "a axis out keepdims", "nansum": "a axis dtype out keepdims",
    "ndim": "a", "nonzero": "a", "outer": "a b out", "packbits": "a axis bitorder", "partition": "a kth axis",
    "percentile": "a q axis out overwrite_input method keepdims", "permute_dims": "a axes",
    "prod": "a axis dtype out keepdims", "ptp": "a axis out keepdims", "put_along_axis": "arr indices values axis",
    "quantile": "a q axis out overwrite_input method keepdims", "ravel": "a order", "repeat": "a repeats axis",
    "roll": "a shift axis", "rollaxis": "a axis start", "rot90": "a k axes", "round": "a decimals out",
    "searchsorted": "a v side sorter", "select": "condlist choicelist default", "shape": "a",
    "shares_memory": "a b max_work", "size": "a axis", "sort": "a axis kind", "split": "ary indices_or_sections axis",
    "squeeze": "a axis", "stack": "tup axis out * dtype casting", "std": "a axis dtype out ddof keepdims",
    "sum": "a axis dtype out keepdims", "swapaxes": "a axis1 axis2", "take": "a indices axis out",
    "take_along_axis": "a indices axis", "tensordot": "a b axes", "tile": "A reps",
    "trace": "a offset axis1 axis2 dtype out", "transpose": "a axes", "tril": "m k", "triu": "m k",
    "unique": "ar return_index return_inverse return_counts axis * equal_nan", "unpackbits": "a axis bitorder",
    "unravel_index": "indices dims order", "var": "a axis dtype out ddof keepdims", "vdot": "a b",
    "vstack": "tup * dtype casting", "where": "condition x y",
}  # fmt: skip
VARIADIC = ("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_shapes", "ix_", "meshgrid")
VARIADIC_KEYWORDS = {"meshgrid": ("indexing", "sparse", "copy")}
HOST_ONLY = ("can_cast", "issubdtype", "promote_types", "result_type", "isdtype")  # about dtypes; arrays allowed


def _refuse_bfloat16(name: str, values: Any) -> None:
    if name not in ("dot", "inner", "vdot", "tensordot", "einsum", "matmul", "sort", "argsort"):
        return
    for value in values:
        if isinstance(value, ndarray) and value.dtype.name == "bfloat16":
            raise TypeError(f"{name} does not support bfloat16")


def call(name: str, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a NumPy function on host memory and move the results to the device. `out` is returned as it was given."""
    _refuse_bfloat16(name, args)
    with np.errstate(all="ignore"):  # the device raises no floating-point warnings
        result = function(*unwrap(args), **{key: unwrap(value) for key, value in kwargs.items()})
    out = kwargs.get("out")
    if out is not None:
        return out
    return wrap(result)


def delegate(name: str, parameters: str) -> Callable:
    """A function with CuPy's parameters that works as NumPy's."""
    check, function = call_checker(name, parameters), getattr(np, name)

    def delegated(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return call(name, function, args, kwargs)

    delegated.__name__ = delegated.__qualname__ = name
    delegated.__doc__ = f"numpy.{name}, with CuPy's parameters: {parameters}."
    return delegated


def variadic(name: str) -> Callable:
    """A function that takes any number of arrays."""
    function, keywords = getattr(np, name), VARIADIC_KEYWORDS.get(name, ())

    def delegated(*args: Any, **kwargs: Any) -> Any:
        if not set(kwargs) <= set(keywords):
            raise TypeError(f"{name}() got an unexpected keyword argument '{min(set(kwargs) - set(keywords))}'")
        return call(name, function, args, kwargs)

    delegated.__name__ = delegated.__qualname__ = name
    return delegated


def about_dtypes(name: str) -> Callable:
    """A function about dtypes: arrays are taken for their dtypes, the result stays on the host."""
    function = getattr(np, name)

    def delegated(*args: Any, **kwargs: Any) -> Any:
        return function(*unwrap(args), **kwargs)

    delegated.__name__ = delegated.__qualname__ = name
    return delegated


def einsum(subscripts: Any, *operands: Any, dtype: Any = None, optimize: bool = False) -> ndarray:
    """numpy.einsum; CuPy has neither `out` nor `order` nor `casting`."""
    _refuse_bfloat16("einsum", operands)
    return wrap(np.einsum(subscripts, *unwrap(operands), dtype=dtype, optimize=optimize))


def matmul(x1: Any, x2: Any, /, out: ndarray | None = None, *, casting: Any = "same_kind", dtype: Any = None) -> Any:
    """The matrix product."""
    _refuse_bfloat16("matmul", (x1, x2))
    a, b = unwrap((x1, x2))
    with np.errstate(all="ignore"):
        result = np.matmul(a, b, out=unwrap(out), casting=casting, dtype=dtype)
    return out if out is not None else wrap(result)


def pad(array: ndarray, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> ndarray:
    """numpy.pad."""
    return wrap(np.pad(unwrap(array), pad_width, mode=mode, **kwargs))


def copyto(dst: ndarray, src: Any, casting: Any = "same_kind", where: Any = None) -> None:
    """Copy values into `dst`, where `where` holds."""
    np.copyto(dst._host, unwrap(src), casting=casting, where=True if where is None else unwrap(where))


def fill_diagonal(a: ndarray, val: Any, wrap: bool = False) -> None:
    """Fill the main diagonal in place."""
    np.fill_diagonal(a._host, unwrap(val), wrap)


def reshape(a: ndarray, newshape: Any, order: str = "C", *, copy: bool | None = None) -> ndarray:
    """The array in another shape."""
    return a.reshape(newshape, order=order, copy=copy)


def astype(x: ndarray, dtype: Any, /, *, copy: bool = True) -> ndarray:
    """The array in another dtype."""
    return x.astype(dtype, copy=copy)
