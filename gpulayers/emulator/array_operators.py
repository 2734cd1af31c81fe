"""The array's operators, and the methods that work as NumPy's; they are put into the class when it is imported."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.emulator.array import ndarray, unwrap, wrap

METHODS = {  # name -> parameters that CuPy's method takes and NumPy's has too
    "all": "axis out keepdims", "any": "axis out keepdims", "argmax": "axis out * keepdims",
    "argmin": "axis out * keepdims", "argpartition": "kth axis", "argsort": "axis kind", "choose": "choices out mode",
    "clip": "min max out", "compress": "condition axis out", "conj": "", "cumprod": "axis dtype out",
    "cumsum": "axis dtype out", "diagonal": "offset axis1 axis2", "flatten": "order", "max": "axis out keepdims",
    "mean": "axis dtype out keepdims", "min": "axis out keepdims", "nonzero": "", "partition": "kth axis",
    "prod": "axis dtype out keepdims", "put": "indices values mode", "ravel": "order", "repeat": "repeats axis",
    "round": "decimals out", "searchsorted": "v side sorter", "sort": "axis kind", "squeeze": "axis",
    "std": "axis dtype out ddof keepdims", "sum": "axis dtype out keepdims", "swapaxes": "axis1 axis2",
    "take": "indices axis out", "trace": "offset axis1 axis2 dtype out", "var": "axis dtype out ddof keepdims",
}  # fmt: skip


def call_checker(name: str, parameters: str) -> Callable[[tuple, dict[str, Any]], None]:
    """A function that refuses arguments which CuPy's function does not take; those behind `*` go by name only."""
    before, _, behind = parameters.partition("*")
    most, allowed = len(before.split()), {*before.split(), *behind.split()}

    def check(args: tuple, kwargs: dict[str, Any]) -> None:
        strange = [key for key in kwargs if key not in allowed]
        if strange:
            raise TypeError(f"{name}() got an unexpected keyword argument '{strange[0]}'")
        if len(args) > most:
            raise TypeError(f"{name}() takes at most {most} positional arguments ({len(args)} given)")

    return check


def _method(name: str, parameters: str) -> Callable:
    check = call_checker(name, parameters)
    host_method = getattr(np.ndarray, name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        refuse_bfloat16_reduction(name, self)
        out = kwargs.get("out")
        result = host_method(self._host, *unwrap(args), **{key: unwrap(one) for key, one in kwargs.items()})
        return out if out is not None else wrap(result)

    method.__name__ = name
    return method


def refuse_bfloat16_reduction(name: str, array: Any) -> None:
    """CuPy sorts no bfloat16."""
    if name in ("sort", "argsort", "partition", "argpartition") and array.dtype.name == "bfloat16":
        raise TypeError(f"{name} does not support bfloat16")


BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip


COMPARISONS = (
    "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip


UNARY = (
    "neg", "pos", "abs", "invert",
)  # fmt: skip


UFUNC_NAMES = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal", "neg": "negative", "pos": "positive",
    "abs": "absolute", "invert": "invert",
}  # fmt: skip


_OPERANDS = (bool, int, float, complex, np.generic)


def _binary(name: str, reflected: bool = False) -> Callable:
    ufunc = UFUNC_NAMES[name]

    def method(self: ndarray, other: Any) -> Any:
        if not isinstance(other, (ndarray, np.ndarray, *_OPERANDS)):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return getattr(self.array_module, ufunc)(*pair)

    return method


def _in_place(name: str) -> Callable:
    function = getattr(operator, f"i{name}")

    def method(self: ndarray, other: Any) -> ndarray:
        if not isinstance(other, (ndarray, np.ndarray, *_OPERANDS)):
            return NotImplemented
        with np.errstate(all="ignore"):
            function(self._host, unwrap(other))
        return self

    return method


def _unary(name: str) -> Callable:
    ufunc = UFUNC_NAMES[name]
    return lambda self: getattr(self.array_module, ufunc)(self)


def _install() -> None:
    for name, parameters in METHODS.items():
        setattr(ndarray, name, _method(name, parameters))
    for name in BINARY:
        setattr(ndarray, f"__{name}__", _binary(name))
        setattr(ndarray, f"__r{name}__", _binary(name, reflected=True))
        if name != "matmul":  # CuPy has no @=
            setattr(ndarray, f"__i{name}__", _in_place(name))
    for name in COMPARISONS:
        setattr(ndarray, f"__{name}__", _binary(name))
    for name in UNARY:
        setattr(ndarray, f"__{name}__", _unary(name))


_install()
