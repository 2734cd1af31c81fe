"""How a kernel is held to its reference, on the emulated device always and on a GPU with `pytest -m gpu`."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contract import as_tuple, check_signatures, floating, widen
from tolerances import assert_close

import gpulayers as gl
from gpulayers.backend import is_array
from gpulayers.ops.op import Op

DEVICES = ["emulated", pytest.param("cupy", marks=pytest.mark.gpu)]
STORAGE = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

on_devices = pytest.mark.parametrize("device", DEVICES)
in_storage = pytest.mark.parametrize("storage", list(STORAGE))


def check_kernel(
    op: Op, device: str, *args: Any, storage: str = "float32", factor: float = 1.0, scale: float = 0.0, **options: Any
) -> tuple[Any, ...]:
    """op.cuda on `device` against the float64 reference on the same, already rounded, values. Returns what it gave.

    Floating args are float32 arrays and are stored as `storage`; those in `Exact(...)` keep their type. The call also
    must write no argument, and give the same bits a second time. factor, scale: see `assert_close`.
    """
    check_signatures(op)
    stored = [_stored(a, storage) for a in args]
    named = {k: _stored(v, storage) for k, v in options.items()}
    exact = op.reference(*(widen(_plain(a)) for a in stored), **{k: widen(_plain(v)) for k, v in named.items()})
    there = [_there(a, device) for a in stored]
    named = {k: _there(v, device) for k, v in named.items()}
    found = [as_tuple(op.cuda(*there, **named)) for _ in range(2)]
    for was, now in zip(stored, there, strict=True):
        if is_array(now):
            assert np.array_equal(_bits(was), _bits(now.get())), f"{op.name}: the kernel wrote an argument"
    for a, b, again in zip(found[0], as_tuple(exact), found[1], strict=True):
        if b is None:
            continue
        assert np.array_equal(_bits(a.get()), _bits(again.get())), f"{op.name}: another run, other bits"
        kind = a.dtype.name if floating(np.asarray(b)) else "float64"
        assert_close(a.get().astype(np.float64), b, kind, factor, scale)
    return found[0]


class Exact:
    """An array that is not stored as `storage`: a float32 statistic among bfloat16 activations."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def _stored(a: Any, storage: str) -> Any:
    if isinstance(a, Exact):
        return a.array
    return a.astype(STORAGE[storage]) if floating(a) else a


def _plain(a: Any) -> Any:
    return a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype == ml_dtypes.bfloat16 else a


def _there(a: Any, device: str) -> Any:
    return gl.to_device(a, device) if isinstance(a, np.ndarray) else a


def _bits(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8)


def only_block(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Emulated kernels run block `number` of their grid and no other: the last row of an array too large to be filled.

    Memory that no thread touches costs nothing there, so an array of more than 2^31 elements may be made for it.
    """
    from gpulayers.emulator.group import Group
    from gpulayers.emulator.launch import Launch, limits
    from gpulayers.emulator.schedule import Scheduler

    def run(self: Any) -> int:
        scheduler = Scheduler(Group(self, number, 1), limits.max_steps)
        with np.errstate(all="ignore"):
            scheduler.run()
        return scheduler.executed

    monkeypatch.setattr(Launch, "run", run)


def refuse_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would make the host wait for the device raises: reading a value, or synchronising."""
    from gpulayers.emulator import cuda
    from gpulayers.emulator.array import ndarray

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the host waits for the device")

    reads = ("get", "item", "tolist", "tobytes", "__bool__", "__int__", "__float__", "__complex__", "__index__")
    for name in reads:
        monkeypatch.setattr(ndarray, name, refuse, raising=False)
    for kind in (cuda.Device, cuda.Stream, cuda.Event):
        monkeypatch.setattr(kind, "synchronize", refuse)
    monkeypatch.setattr(cuda.runtime, "deviceSynchronize", refuse, raising=False)
