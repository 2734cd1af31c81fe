"""A compiled module: its kernels, global variables and signatures, ready to be launched."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpulayers.emulator import nvrtc, parser, signature
from gpulayers.emulator.allocation import Allocation
from gpulayers.emulator.blocks import Code
from gpulayers.emulator.decode import decode
from gpulayers.emulator.errors import CompileError, EmulatorError
from gpulayers.emulator.launch import Launch, Span
from gpulayers.emulator.program import Variable
from gpulayers.emulator.signature import CType

DEFAULT_ARCH = "compute_75"
_parsed: dict[bytes, parser.Program] = {}


class Module:
    """PTX that has been parsed; kernels are decoded when first asked for."""

    def __init__(
        self, text: str, *, name: str = "kernel.cu", source: str | None = None,
        names: dict[str, str] | None = None, types: dict[str, list[CType]] | None = None,
    ) -> None:  # fmt: skip
        self.program = _parse(text, name, source)
        self.names, self.types = names or {}, types or {}
        self.codes: dict[str, Code] = {}
        self.spans: list[Span] = []
        self.addresses: dict[str, int] = {}
        self._place_variables()

    def _place_variables(self) -> None:
        variables = [one for one in self.program.variables.values() if one.space in ("global", "const")]
        allocations = {variable.name: Allocation(max(1, variable.size)) for variable in variables}
        self.addresses = {name: allocation.address for name, allocation in allocations.items()}
        for variable in variables:
            allocation = allocations[variable.name]
            self._initialise(variable, allocation)
            start = allocation.address
            span = Span(
                f"variable {variable.name}", start, start + variable.size, allocation, variable.space == "const"
            )
            self.spans.append(span)

    def _initialise(self, variable: Variable, allocation: Allocation) -> None:
        """Variables without a value start as zeros, as on the device."""
        allocation.data[:] = np.frombuffer(variable.data, np.uint8) if variable.data else 0
        for offset, symbol in variable.symbols.items():
            address = np.array([self.addresses.get(symbol, 0)], np.uint64)
            allocation.data[offset : offset + 8] = address.view(np.uint8)

    def lowered(self, name: str) -> str:
        """The kernel's name in the PTX."""
        found = self.names.get(name, name)
        if found not in self.program.kernels:
            known = ", ".join(sorted(k for k in self.program.kernels if signature.PROBE not in k)) or "none"
            raise EmulatorError(f"no kernel {name} in the module (there are: {known})")
        return found

    def code(self, name: str) -> Code:
        """The decoded kernel."""
        found = self.lowered(name)
        if found not in self.codes:
            try:
                self.codes[found] = decode(self.program, found, self.addresses)
            except EmulatorError as error:
                error.kernel = error.kernel or name
                raise
        return self.codes[found]

    def launch(
        self, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], values: list[bytes],
        spans: list[Span], *, shared: int = 0, shared_limit: int = 48 << 10, check_races: bool = True,
    ) -> int:  # fmt: skip
        """Run a kernel on raw parameter values; `spans` are the memories it may touch. Returns instructions run."""
        everything = [*spans, *self.spans]
        one = Launch(self.code(name), grid, block, values, everything, shared, shared_limit, name, check_races)
        return one.run()


def _parse(text: str, name: str, source: str | None) -> parser.Program:
    key = hashlib.sha256("\0".join((text, name, source or "")).encode()).digest()
    if key not in _parsed:
        _parsed[key] = parser.parse(text, name, source)
    return _parsed[key]


def compile_module(
    source: str,
    *,
    name: str = "kernel.cu",
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
    arch: str = DEFAULT_ARCH,
) -> Module:
    """Compile CUDA C++ and parse its PTX. The signatures are probed in the same run of the compiler."""
    expressions = list(name_expressions)
    kernels = list(dict.fromkeys([*signature.kernel_names(source), *expressions]))
    compile_with = functools.partial(_compile, source, name, options, expressions, arch)
    try:
        compiled = compile_with(kernels)
    except CompileError:  # the source is wrong, or a kernel is not there for this architecture: this run tells
        compiled = compile_with([])
        entries = re.findall(r"\.entry\s+(\w+)", compiled.text)
        kernels = [kernel for kernel in kernels if kernel in entries or kernel in expressions]
        with contextlib.suppress(CompileError):
            compiled = compile_with(kernels)
    names = {expression: compiled.names[expression] for expression in expressions}
    probes = {kernel: compiled.names.get(signature.probe_expression(kernel)) for kernel in kernels}
    found = {kernel: signature.parameter_types(probe) for kernel, probe in probes.items() if probe}
    types = {kernel: one for kernel, one in found.items() if one is not None}
    return Module(compiled.text, name=Path(name).name, source=source, names=names, types=types)


def _compile(
    source: str, name: str, options: Sequence[str], expressions: list[str], arch: str, probed: list[str]
) -> nvrtc.Compiled:
    """PTX with the types of the `probed` kernels among the lowered names."""
    text = source + signature.PROBE_SOURCE if probed else source
    names = [*expressions, *map(signature.probe_expression, probed)]
    return nvrtc.compile_ptx(text, name, arch=arch, options=options, name_expressions=names)


def load_module(path: str) -> Module:
    """Read a `.ptx` file."""
    return Module(Path(path).read_text(), name=Path(path).name)
