"""Compile CUDA C++ with NVIDIA's NVRTC through ctypes, with the options that CuPy gives it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import NamedTuple

from gpulayers.emulator import disk_cache, toolkit
from gpulayers.emulator.errors import CompileError, ToolkitMissing
from gpulayers.remedies import INSTALL

BASE_OPTIONS = ("-std=c++17", "-ftz=true")
_cache: dict[str, Compiled] = {}
_lock = threading.Lock()


class Compiled(NamedTuple):
    """What NVRTC made: PTX text or a cubin, the lowered name of each name expression, and the log."""

    code: bytes
    names: dict[str, str]
    log: str

    @property
    def text(self) -> str:
        """The PTX as text."""
        return self.code.rstrip(b"\0").decode()


class Resources(NamedTuple):
    """One kernel's line in ptxas's report; sizes in bytes."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


@functools.cache
def _library() -> ctypes.CDLL:
    path = toolkit.find().library
    if sys.platform == "win32":  # Windows looks for the builtins library only in folders it was told of
        os.add_dll_directory(str(path.parent))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolkitMissing(f"NVRTC at {path} does not load ({error}): {INSTALL['emulated']}") from error
    library.nvrtcGetErrorString.restype = c_char_p
    library.nvrtcGetErrorString.argtypes = [c_int]
    library.nvrtcGetLoweredName.argtypes = [c_void_p, c_char_p, POINTER(c_char_p)]
    return library


def version() -> tuple[int, int]:
    """NVRTC's version, such as (13, 0)."""
    major, minor = c_int(), c_int()
    _check(_library().nvrtcVersion(byref(major), byref(minor)))
    return major.value, minor.value


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC: {_library().nvrtcGetErrorString(status).decode()}")


def _fetch(program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, byref(size)))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _check(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw[: size.value]


def _lowered(program: c_void_p, expression: str) -> str:
    name = c_char_p()
    _check(_library().nvrtcGetLoweredName(program, expression.encode(), byref(name)))
    return (name.value or b"").decode()


def _run(source: str, name: str, expressions: Sequence[str], options: Sequence[str], kind: str) -> Compiled:
    library, program = _library(), c_void_p()
    _check(library.nvrtcCreateProgram(byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        for expression in expressions:
            _check(library.nvrtcAddNameExpression(program, expression.encode()))
        array = (c_char_p * len(options))(*[option.encode() for option in options])
        failed = library.nvrtcCompileProgram(program, len(options), array)
        log = _fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            raise CompileError(f"NVRTC does not compile {name}:\n{log.strip()}")
        names = {expression: _lowered(program, expression) for expression in expressions}
        return Compiled(_fetch(program, kind), names, log)
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _all_options(options: Iterable[str], arch: str, extra: Iterable[str]) -> list[str]:
    given = list(options)
    base = [option for option in BASE_OPTIONS if not any(_same_option(option, other) for other in given)]
    return [*base, f"-arch={arch}", *extra, f"-I{toolkit.find().include}", *given]


def _same_option(one: str, other: str) -> bool:
    return one.lstrip("-").split("=")[0] == other.lstrip("-").split("=")[0]


def _cached(
    source: str, name: str, expressions: Sequence[str], options: list[str], own: Sequence[str], kind: str
) -> Compiled:
    """From memory, else (PTX) from disk, else from the compiler. An edited `common.cuh` changes the key."""
    parts = (kind, str(version()), name, source, *expressions, "", *options, "", disk_cache.headers_digest(own))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    with _lock:
        if key not in _cache:
            found = disk_cache.load(key) if kind == "PTX" else None
            if found is None:
                found = _run(source, name, expressions, options, kind)
                if kind == "PTX":
                    disk_cache.store(key, *found)
            _cache[key] = Compiled(*found)
        return _cache[key]


def compile_ptx(
    source: str,
    name: str = "kernel.cu",
    *,
    arch: str = "compute_75",
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
) -> Compiled:
    """PTX of `source` with line information, so that errors can name the source line. Errors: CompileError."""
    full = _all_options(options, arch, ["-lineinfo"])
    return _cached(source, name, tuple(name_expressions), full, tuple(options), "PTX")


def compile_cubin(
    source: str,
    name: str = "kernel.cu",
    *,
    arch: str = "sm_90",
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
) -> Compiled:
    """Machine code of `source` for one architecture, as CuPy loads it; ptxas's report is in the log."""
    full = _all_options(options, arch, ["--ptxas-options=-v"])
    return _cached(source, name, tuple(name_expressions), full, tuple(options), "CUBIN")


_REPORT = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def resources(
    source: str,
    name: str = "kernel.cu",
    *,
    arch: str = "sm_90",
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
) -> dict[str, Resources]:
    """Registers, spills and shared memory of each kernel (by its name in the machine code), from ptxas's log."""
    log = compile_cubin(source, name, arch=arch, options=options, name_expressions=name_expressions).log
    report = {}
    for found in _REPORT.finditer(log):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        registers, stores, loads, stack = (int(found[key]) for key in ("registers", "stores", "loads", "stack"))
        report[found["name"]] = Resources(registers, stores, loads, stack, int(shared[1]) if shared else 0)
    return report
