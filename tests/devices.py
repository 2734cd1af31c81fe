"""How a kernel is held to its reference, on the emulated device always and on a GPU with `pytest -m gpu`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contract import as_tuple, check_signatures, floating, widen
from tolerances import assert_close

import gpulayers as gl
from gpulayers import cuda
from gpulayers.backend import is_array
from gpulayers.ops.op import Op

DEVICES = ["emulated", pytest.param("cupy", marks=pytest.mark.gpu)]
STORAGE = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

on_devices = pytest.mark.parametrize("device", DEVICES)
in_storage = pytest.mark.parametrize("storage", list(STORAGE))


def check_kernel(
    op: Op,
    device: str,
    *args: Any,
    storage: str = "float32",
    factor: float = 1.0,
    scale: float = 0.0,
    spare: bool = True,
    **options: Any,
) -> tuple[Any, ...]:
    """op.cuda on `device` against the float64 reference on the same, already rounded, values. Returns what it gave.

    Floating args are float32 arrays and are stored as `storage`; those in `Exact(...)` keep their type. The call also
    must write no argument, and give the same bits a second time, with a block to spare unless `spare` is
    false: where the grid is at its limit, blocks share out the work. factor, scale: see `assert_close`.
    """
    check_signatures(op)
    stored = [_stored(a, storage) for a in args]
    named = {k: _stored(v, storage) for k, v in options.items()}
    exact = op.reference(*(widen(_plain(a)) for a in stored), **{k: widen(_plain(v)) for k, v in named.items()})
    there = [_there(a, device) for a in stored]
    named = {k: _there(v, device) for k, v in named.items()}
    found = [as_tuple(op.cuda(*there, **named))]
    with spare_blocks() if spare else contextlib.nullcontext():
        found.append(as_tuple(op.cuda(*there, **named)))
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


# Kernels that know no size to which a block's number could be held: each block has its share by construction.
FIXED_GRIDS = ("sum_of_squares", "masked_softmax")


@contextlib.contextmanager
def spare_blocks() -> Iterator[None]:
    """Inside, kernels are launched with one block more than they need, which must find nothing to do."""
    kernel_of = cuda._kernel

    def with_spare(xp: Any, source: str, storage: str, function: str) -> Any:
        kernel = kernel_of(xp, source, storage, function)
        return kernel if function.startswith(FIXED_GRIDS) else _Spare(kernel)

    cuda._kernel = with_spare
    try:
        yield
    finally:
        cuda._kernel = kernel_of


class _Spare:
    def __init__(self, kernel: Any) -> None:
        object.__setattr__(self, "kernel", kernel)

    def __call__(self, grid: tuple[int, ...], *rest: Any, **options: Any) -> None:
        self.kernel((grid[0] + 1, *grid[1:]), *rest, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.kernel, name, value)


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
    from gpulayers.emulator import cuda as device
    from gpulayers.emulator.array import ndarray

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the host waits for the device")

    reads = ("get", "item", "tolist", "tobytes", "__bool__", "__int__", "__float__", "__complex__", "__index__")
    for name in reads:
        monkeypatch.setattr(ndarray, name, refuse, raising=False)
    for kind in (device.Device, device.Stream, device.Event):
        monkeypatch.setattr(kind, "synchronize", refuse)
    monkeypatch.setattr(device.runtime, "deviceSynchronize", refuse, raising=False)
