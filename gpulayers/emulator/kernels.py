"""RawKernel and RawModule with CuPy's conventions, whose kernels run in the emulator."""

from __future__ import annotations

import operator
import time
from typing import Any

from gpulayers.emulator import settings
from gpulayers.emulator.arguments import Binder
from gpulayers.emulator.array import ndarray
from gpulayers.emulator.errors import Coordinates, EmulatorError, LaunchError
from gpulayers.emulator.launch import limits
from gpulayers.emulator.memory_pool import MemoryPointer, pointer
from gpulayers.emulator.module import Module, compile_module, load_module
from gpulayers.emulator.settings import LaunchRecord


def _three(size: Any, name: str) -> Coordinates:
    """As CuPy: a tuple of 1 to 3 integers, of which zeros count as ones."""
    if not isinstance(size, tuple):
        raise TypeError(f"Argument '{name}' has incorrect type (expected tuple, got {type(size).__name__})")
    x, y, z = (max(1, operator.index(one)) for one in (*size, 1, 1)[:3])
    return x, y, z


class RawModule:
    """CUDA source or a `.ptx` file; compiled when the first kernel is asked for, once for each architecture."""

    def __init__(
        self, *, code: str | None = None, path: str | None = None, options: tuple[str, ...] = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
        name_expressions: Any = None, jitify: bool = False,
    ) -> None:  # fmt: skip
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        if name_expressions is not None and code is None:
            raise ValueError("need CUDA C++ code for the requested kernels")
        if backend != "nvrtc" or translate_cucomplex or enable_cooperative_groups or jitify:
            # options of CuPy's signature that need another compiler, or a grid that is resident as a whole
            raise NotImplementedError("the emulator knows the backend nvrtc, without cooperative groups and jitify")
        self.code, self.file_path, self.options, self.backend = code, path, options, backend
        self.name_expressions = tuple(name_expressions) if name_expressions is not None else None
        self.enable_cooperative_groups = False
        self._file_name = "kernel.cu"
        self._modules: dict[str, Module] = {}

    @property
    def module(self) -> Module:
        """The parsed module for the current architecture."""
        arch = settings.current.arch
        if arch not in self._modules:
            self._modules[arch] = self._load(arch)
        return self._modules[arch]

    def _load(self, arch: str) -> Module:
        if self.code is None:
            assert self.file_path is not None
            return load_module(self.file_path)
        expressions = self.name_expressions or ()
        return compile_module(
            self.code, name=self._file_name, options=self.options, name_expressions=expressions, arch=arch
        )

    def compile(self, log_stream: Any = None) -> None:
        """Compile now."""
        self._modules.clear()
        _ = self.module

    def get_function(self, name: str) -> RawKernel:
        """A kernel by its name, or by one of the name expressions."""
        self.module.code(name)
        kernel = RawKernel.__new__(RawKernel)
        kernel._set(self, name)
        return kernel

    def get_global(self, name: str) -> MemoryPointer:
        """The address of a `__device__` or `__constant__` variable."""
        address = self.module.addresses.get(name)
        if address is None:
            raise EmulatorError(f"no variable {name} in the module")
        return pointer(address)


class RawKernel:
    """One kernel. `kernel(grid, block, args, shared_mem=0)` checks the arguments and runs it."""

    def __init__(
        self, code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc", *,
        translate_cucomplex: bool = False, enable_cooperative_groups: bool = False, jitify: bool = False,
    ) -> None:  # fmt: skip
        module = RawModule(
            code=code, options=options, backend=backend, translate_cucomplex=translate_cucomplex,
            enable_cooperative_groups=enable_cooperative_groups, jitify=jitify,
        )  # fmt: skip
        module._file_name = f"{name}.cu"
        self._set(module, name)

    def _set(self, module: RawModule, name: str) -> None:
        self._module, self.name, self.__name__ = module, name, name
        self._dynamic_limit: int | None = None

    @property
    def code(self) -> str | None:
        """The source."""
        return self._module.code

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        return self._module.options

    @property
    def backend(self) -> str:
        """Always nvrtc."""
        return self._module.backend

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory."""
        return self._module.module.code(self.name).shared.declared

    @property
    def local_size_bytes(self) -> int:
        """Local memory of a thread, as PTX declares it."""
        return self._module.module.code(self.name).local_size

    @property
    def max_threads_per_block(self) -> int:
        """1024."""
        return limits.threads_per_block

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory that a launch may ask for; 48 KB less the static, until it is raised."""
        raised = self._dynamic_limit
        return limits.shared_default - self.shared_size_bytes if raised is None else raised

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, bytes: int) -> None:
        most = settings.shared_most() - self.shared_size_bytes
        if bytes > most:
            raise LaunchError(f"{bytes} bytes of dynamic shared memory: the device has {most}", kernel=self.name)
        self._dynamic_limit = int(bytes)

    def compile(self, log_stream: Any = None) -> None:
        """Compile now."""
        self._module.compile(log_stream)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
        """Run the kernel over the grid; returns when it is done."""
        grid, block = _three(grid, "grid"), _three(block, "block")
        module = self._module.module
        code = module.code(self.name)
        types = module.types.get(self.name)
        values, spans = Binder(self.name, code.parameters, types, ndarray).bind(args)
        start = time.perf_counter()
        executed = module.launch(
            self.name, grid, block, values, spans, shared=int(shared_mem),
            shared_limit=self.max_dynamic_shared_size_bytes, check_races=settings.current.check_races,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        settings.record(LaunchRecord(self.name, grid, block, int(shared_mem), executed, seconds))
