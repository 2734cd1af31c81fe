"""The stand-in's `cuda` namespace: device, streams, events, memory pool, runtime."""

from __future__ import annotations

import types
from typing import Any

from gpulayers.emulator import cuda_runtime as runtime
from gpulayers.emulator import settings
from gpulayers.emulator.errors import CompileError
from gpulayers.emulator.memory_pool import MemoryPointer, MemoryPool, OutOfMemoryError, PinnedMemoryPool, default_pool
from gpulayers.emulator.streams import Event, Stream, get_current_stream, get_elapsed_time

memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError, MemoryPointer=MemoryPointer, MemoryPool=MemoryPool)
compiler = types.SimpleNamespace(CompileException=CompileError)
stream = types.SimpleNamespace(Stream=Stream, Event=Event, get_current_stream=get_current_stream)


class Device:
    """The one emulated device."""

    def __init__(self, device: int = 0) -> None:
        runtime.setDevice(int(device))
        self.id = 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    def __hash__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<CUDA Device 0>"

    def use(self) -> None:
        """It is in use already."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    @property
    def compute_capability(self) -> str:
        """ "75" or what `emulator.using(arch=...)` says."""
        return settings.compute_capability()

    @property
    def mem_info(self) -> tuple[int, int]:
        """(free, total) bytes."""
        return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, int]:
        """Some of the device's attributes."""
        return {
            "MaxThreadsPerBlock": 1024,
            "MaxSharedMemoryPerBlock": 48 << 10,
            "MaxSharedMemoryPerBlockOptin": settings.shared_most(),
            "MultiProcessorCount": 4,
            "WarpSize": 32,
        }


def is_available() -> bool:
    """The emulated device is always there."""
    return True


def get_device_id() -> int:
    """Device 0."""
    return 0


def alloc(size: int) -> MemoryPointer:
    """A block from the default pool."""
    return default_pool.malloc(size)


__all__ = [
    "Device", "Event", "MemoryPointer", "MemoryPool", "PinnedMemoryPool", "Stream", "alloc", "compiler",
    "get_current_stream", "get_device_id", "get_elapsed_time", "is_available", "memory", "runtime", "stream",
]  # fmt: skip
