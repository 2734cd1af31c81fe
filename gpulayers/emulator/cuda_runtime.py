"""The part of `cupy.cuda.runtime` that libraries ask: how many devices, which, and what they can do."""

from __future__ import annotations

from typing import Any

from gpulayers.emulator import nvrtc, settings
from gpulayers.emulator.memory_pool import TOTAL, default_pool

is_hip = False


def getDeviceCount() -> int:
    """One."""
    return 1


def getDevice() -> int:
    """Device 0."""
    return 0


def setDevice(device: int) -> None:
    """Only device 0 is there."""
    if device != 0:
        raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")


def deviceSynchronize() -> None:
    """Nothing to wait for."""


def memGetInfo() -> tuple[int, int]:
    """(free, total) bytes."""
    return TOTAL - default_pool.used_bytes(), TOTAL


def runtimeGetVersion() -> int:
    """NVRTC's version, 1000 major + 10 minor."""
    major, minor = nvrtc.version()
    return 1000 * major + 10 * minor


def driverGetVersion() -> int:
    """The same: there is no driver."""
    return runtimeGetVersion()


def getDeviceProperties(device: int) -> dict[str, Any]:
    """What the emulated device claims."""
    setDevice(device)
    capability = int(settings.compute_capability())
    return {
        "name": b"emulated device",
        "major": capability // 10,
        "minor": capability % 10,
        "totalGlobalMem": TOTAL,
        "sharedMemPerBlock": 48 << 10,
        "sharedMemPerBlockOptin": settings.shared_most(),
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "multiProcessorCount": 4,
    }
