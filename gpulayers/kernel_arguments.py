"""The arguments of a launch, held to the parameters that the kernel's source declares.

A raw kernel takes 8 bytes for any pointer and any bytes for a number: a float32 gradient for a bfloat16 layer, or an
int for an `offset`, would be read as something else, without a word.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import is_array

C_TYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
    "int": np.dtype(np.int32),
    "unsigned": np.dtype(np.uint32),
    "long long": np.dtype(np.int64),
    "offset": np.dtype(np.int64),
    "word64": np.dtype(np.uint64),
}

ADDRESS = np.dtype(np.uint64)


class CParameter(NamedTuple):
    """dtype: None for the storage type."""

    name: str
    dtype: np.dtype | None
    pointer: bool


def parameters(code: str, function: str) -> tuple[CParameter, ...]:
    """The parameters of a kernel, `extern "C" __global__ void [__launch_bounds__(...)] function(...)`, in a source."""
    head = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\([^)]*\)\s*)?{function}\(([^)]*)\)', code)
    if head is None:
        raise ValueError(f"no kernel {function} in the source")
    return tuple(_parameter(one) for one in head[1].split(","))


def _parameter(declared: str) -> CParameter:
    kind, name = re.sub(r"\bconst\b", "", declared).rsplit(maxsplit=1)
    pointer, kind = "*" in kind, kind.replace("*", "").strip()
    return CParameter(name, None if kind == "storage" else C_TYPES[kind], pointer)


def check_arguments(function: str, wanted: tuple[CParameter, ...], storage: np.dtype, args: tuple[Any, ...]) -> None:
    """Refuse what the kernel would misread: TypeError, or ValueError for a view, which has strides.

    A pointer takes an array of its dtype, None, or an address (uint64); a number a NumPy scalar of its dtype.
    """
    if len(args) != len(wanted):
        raise TypeError(f"{function} takes {len(wanted)} arguments, got {len(args)}")
    for arg, (name, dtype, pointer) in zip(args, wanted, strict=True):
        dtype = storage if dtype is None else dtype
        if isinstance(arg, np.generic):
            if arg.dtype != (ADDRESS if pointer else dtype):
                raise TypeError(f"{function}: {name} must be {dtype}, got {arg.dtype}")
        elif is_array(arg):
            if not pointer or arg.dtype != dtype:
                raise TypeError(f"{function}: {name} must be {dtype}, got an array of {arg.dtype}")
            if not arg.flags.c_contiguous:
                raise ValueError(f"{function}: {name} is not contiguous, strides {arg.strides}")
        elif arg is not None or not pointer:
            raise TypeError(f"{function}: {name} is a {type(arg).__name__}; wrap it to its C type, numpy.{dtype}")
