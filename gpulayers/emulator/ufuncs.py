"""The stand-in's element-wise functions. CuPy's take `out`, `dtype` and `casting`, and have no `where`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulayers.emulator.array import _key, ndarray, unwrap, wrap

NAMES = (
    "abs", "absolute", "acos", "acosh", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_count", "bitwise_invert",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cbrt", "ceil", "conj",
    "conjugate", "copysign", "cos", "cosh", "deg2rad", "degrees", "divide", "divmod", "equal", "exp", "exp2",
    "expm1", "fabs", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp", "gcd", "greater",
    "greater_equal", "heaviside", "hypot", "invert", "isfinite", "isinf", "isnan", "lcm", "ldexp", "left_shift",
    "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "mod", "modf", "multiply", "negative", "nextafter",
    "not_equal", "positive", "pow", "power", "rad2deg", "radians", "reciprocal", "remainder", "right_shift", "rint",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "true_divide", "trunc",
)  # fmt: skip
NO_BFLOAT16 = (  # CuPy has no bfloat16 loop for these, or NumPy has none (the last five)
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "divmod", "float_power", "gcd", "invert", "lcm", "left_shift",
    "logical_not", "logical_xor", "right_shift", "deg2rad", "degrees", "ldexp", "rad2deg", "radians",
)  # fmt: skip
SCATTER = ("add", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum", "subtract")
REDUCE = ("add", "multiply")
_SCALARS = (bool, int, float, complex, np.generic)


class ufunc:
    """An element-wise function."""

    def __init__(self, name: str) -> None:
        self._function: np.ufunc = getattr(np, name)
        self.__name__ = name
        self.name = f"cupy_{name}"
        self.nin, self.nout, self.nargs = self._function.nin, self._function.nout, self._function.nargs
        self.__doc__ = f"numpy.{name} on arrays of the emulated device, with CuPy's keywords: out, dtype, casting."

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Any:
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        for one in args[: self.nin]:
            self._check(one)
        if len(args) > self.nin:
            out = args[self.nin] if self.nout == 1 else args[self.nin :]
        host_out = None if out is None else unwrap(out if isinstance(out, tuple) else (out,))
        with np.errstate(all="ignore"):
            result = self._function(*unwrap(args[: self.nin]), out=host_out, dtype=dtype, casting=casting)
        if out is not None:
            return out[0] if isinstance(out, tuple) and len(out) == 1 else out
        return wrap(result)

    def _check(self, value: Any) -> None:
        if isinstance(value, ndarray):
            if value.dtype.name == "bfloat16" and self.__name__ in NO_BFLOAT16:
                raise TypeError(f"Wrong type (bfloat16) of arguments for {self.name}")
        elif not isinstance(value, _SCALARS):
            raise TypeError(f"Unsupported type {type(value)}")

    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        """In-place operation with repeated indices."""
        if self.__name__ not in SCATTER:  # CuPy has no other either, and these are its words; see `_only`
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        self._function.at(a._host, _key(indices), unwrap(b))

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum or product along an axis."""
        self._only(REDUCE, "reduce")
        method = array.sum if self.__name__ == "add" else array.prod
        return method(axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """The running sum or product."""
        self._only(REDUCE, "accumulate")
        method = array.cumsum if self.__name__ == "add" else array.cumprod
        return method(axis=axis, dtype=dtype, out=out)

    def outer(self, A: ndarray, B: ndarray, **kwargs: Any) -> Any:
        """All pairs."""
        return self(A.reshape(A.shape + (1,) * B.ndim), B.reshape((1,) * A.ndim + B.shape), **kwargs)

    def _only(self, names: tuple[str, ...], what: str) -> None:
        if self.__name__ not in names:  # in CuPy's words: there it is the same
            raise NotImplementedError(f"`{self.name}.{what}` is not supported yet")
