"""Kernel arguments as CuPy passes them, checked against the kernel's signature, which CuPy does not look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulayers.emulator.allocation import find, live
from gpulayers.emulator.errors import ArgumentError
from gpulayers.emulator.launch import Span
from gpulayers.emulator.program import Variable
from gpulayers.emulator.signature import ANY, CType

KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool", "V": "any", "c": "any"}


def kind_of(dtype: np.dtype) -> str:
    """The kind of C value that a dtype holds."""
    return "bfloat16" if dtype.name == "bfloat16" else KINDS.get(dtype.kind, "any")


def fits(dtype: np.dtype, wanted: CType) -> bool:
    """Whether elements of `dtype` may stand behind a pointer to `wanted`, or be passed for it.

    Sizes must agree, and floats are not integers; signs may differ, bytes may be bools, and bfloat16 may be kept as
    raw 16-bit integers."""
    if wanted.kind in ("any", "pointer"):
        return wanted.kind == "any" or dtype.itemsize == 8
    if dtype.itemsize != wanted.size:
        return False
    kinds = {kind_of(dtype), wanted.kind}
    return len(kinds) == 1 or kinds in ({"int", "bool"}, {"bfloat16", "int"}) or "any" in kinds


def check_count(kernel: str, given: int, wanted: int) -> None:
    """As many arguments as parameters."""
    if given != wanted:
        raise ArgumentError(f"{given} arguments for {wanted} parameters", kernel=kernel)


class Binder:
    """Turns arguments into parameter bytes and the memory that the kernel may touch."""

    def __init__(self, kernel: str, parameters: list[Variable], types: list[CType] | None, array_class: type) -> None:
        self.kernel, self.parameters, self.array_class = kernel, parameters, array_class
        known = types if types is not None and len(types) == len(parameters) else None
        self.types = known or [ANY] * len(parameters)
        self.values: list[bytes] = []
        self.spans: list[Span] = []

    def bind(self, arguments: Any) -> tuple[list[bytes], list[Span]]:
        """Parameter bytes and memory spans. Errors: ArgumentError."""
        check_count(self.kernel, len(arguments), len(self.parameters))
        for number, (argument, parameter, wanted) in enumerate(
            zip(arguments, self.parameters, self.types, strict=True)
        ):
            self.values.append(self._one(number, argument, parameter, wanted))
        return self.values, self.spans

    def _wrong(self, number: int, message: str) -> ArgumentError:
        return ArgumentError(f"argument {number}: {message}", kernel=self.kernel)

    def _one(self, number: int, argument: Any, parameter: Variable, wanted: CType) -> bytes:
        if isinstance(argument, self.array_class):
            return self._array(number, argument, parameter, wanted)
        if argument is None:  # CuPy 13 makes of it an address that is not 0
            raise self._wrong(number, "None is no null pointer in CuPy 13; pass numpy.uint64(0)")
        if hasattr(argument, "ptr"):  # a MemoryPointer
            argument = np.uint64(argument.ptr)
        value = self._scalar(number, argument)
        if value.dtype.itemsize != parameter.size:
            message = f"{_describe(argument)} has {value.dtype.itemsize} bytes, the parameter"
            raise self._wrong(number, f"{message} ({wanted}) has {parameter.size}; wrap it, as in numpy.float32(x)")
        if wanted.kind == "pointer":
            self._pointer(number, int(value.reshape(1).view(np.uint64)[0]), wanted)
        elif wanted is not ANY and not (value.dtype.kind == "V" or fits(value.dtype, wanted)):
            raise self._wrong(number, f"{_describe(argument)} for a parameter of type {wanted}")
        return value.tobytes()

    def _scalar(self, number: int, argument: Any) -> np.ndarray:
        """As CuPy: bool 1 byte, int and float 8, complex 16, NumPy scalars and arrays of one element by value."""
        if isinstance(argument, np.ndarray) and argument.size != 1:
            raise self._wrong(
                number,
                f"numpy.ndarray of shape {argument.shape} cannot be a kernel argument; for a pointer to device "
                "memory pass an array of the device",
            )
        if not isinstance(argument, (bool, int, float, complex, np.generic, np.ndarray)):
            raise self._wrong(number, f"unsupported type {type(argument).__name__}")
        try:
            return (
                np.asarray(argument)
                if not isinstance(argument, int) or isinstance(argument, bool)
                else np.asarray(argument, np.int64)
            )
        except OverflowError as error:
            raise self._wrong(number, f"{argument} does not fit 8 bytes") from error

    def _array(self, number: int, array: Any, parameter: Variable, wanted: CType) -> bytes:
        dtype = np.dtype(array.dtype)
        if parameter.size != 8 or (wanted is not ANY and wanted.kind not in ("pointer", "any")):
            raise self._wrong(number, f"an array for a parameter of type {wanted} ({parameter.size} bytes)")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            message = f"a view with shape {array.shape} and strides {array.strides}: a kernel sees no strides"
            raise self._wrong(number, f"{message}; pass a contiguous copy")
        target = wanted.target or ANY
        if not fits(dtype, target):
            raise self._wrong(number, f"an array of {dtype.name} for a parameter of type {wanted}")
        address = array.data.ptr
        if array.size:
            allocation = find(address)
            assert allocation is not None
            name = f"argument {number} ({dtype.name}{list(array.shape)})"
            self.spans.append(Span(name, address, address + array.nbytes, allocation, target.const))
        if target.kind == "pointer":
            self._everything()
        return address.to_bytes(8, "little")

    def _pointer(self, number: int, address: int, wanted: CType) -> None:
        """A bare address opens the whole allocation that it points into."""
        allocation = find(address) if address else None
        if allocation is not None:
            const = wanted.target is not None and wanted.target.const
            start = allocation.address
            self.spans.append(Span(f"argument {number}", start, start + allocation.size, allocation, const))

    def _everything(self) -> None:
        """Pointers to pointers may lead anywhere."""
        for allocation in live():
            start = allocation.address
            self.spans.append(Span("device memory", start, start + allocation.size, allocation, False))


def _describe(argument: Any) -> str:
    if isinstance(argument, (np.generic, np.ndarray)):
        return f"numpy.{argument.dtype.name}"
    return f"a Python {type(argument).__name__}"
