"""Fixtures for the emulator's tests: run one PTX instruction over arrays, or a small CUDA kernel."""

import numpy as np
import pytest

pytest.importorskip("gpulayers.emulator.toolkit")

from gpulayers.emulator import cupy as cp
from gpulayers.emulator import disk_cache, toolkit
from gpulayers.emulator.arguments import Binder
from gpulayers.emulator.errors import ToolkitMissing
from gpulayers.emulator.module import Module
from gpulayers.emulator.program import DTYPES

REGISTERS = {"pred": "pred", "f32": "f32", "f64": "f64"}


def _register(code: str) -> str:
    return REGISTERS.get(code, f"b{max(16, 8 * DTYPES[code].itemsize)}")


def _move(code: str) -> str:
    return f"b{8 * DTYPES[code].itemsize}"


def ptx_of(body: str, results: list[str], inputs: list[str], target: str) -> str:
    """A kernel in which each thread loads its inputs into %a, %b, ..., runs `body` and stores %d, %e, ..."""
    letters = dict(zip("abc", inputs, strict=False)) | dict(zip("de", results, strict=False))
    parameters = ", ".join(f".param .u64 p{k}" for k in range(len(results) + len(inputs)))
    lines = [f".version 8.0\n.target {target}\n.address_size 64\n.visible .entry k({parameters})\n{{"]
    lines += [f".reg .{_register(code)} %{letter};" for letter, code in letters.items()]
    lines += [".reg .b64 %at<9>;", ".reg .b64 %i;", ".reg .b32 %t<9>, %i32;", ".reg .pred %p<9>;", ".reg .b16 %h<9>;"]
    lines += ["mov.u32 %i32, %tid.x;", "cvt.u64.u32 %i, %i32;"]
    for k, (letter, code) in enumerate(letters.items()):
        number = k + len(results) if letter in "abc" else k - len(inputs)
        size = 4 if code == "pred" else DTYPES[code].itemsize
        lines += [f"ld.param.u64 %at{k}, [p{number}];", f"mad.lo.u64 %at{k}, %i, {size}, %at{k};"]
        if letter in "abc":
            lines.append(f"ld.global.{_move(code)} %{letter}, [%at{k}];")
    lines.append(body)
    for k, (letter, code) in enumerate(letters.items()):
        if letter in "de":
            source = f"%{letter}"
            if code == "pred":
                lines.append(f"selp.u32 %t0, 1, 0, {source};")
                source, code = "%t0", "u32"
            lines.append(f"st.global.{_move(code)} [%at{k}], {source};")
    return "\n".join([*lines, "ret;", "}"])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test reads or writes the user's cache."""
    place = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setattr(disk_cache, "folder", lambda: place)
    yield place
    patch.undo()


@pytest.fixture
def ptx():
    """`ptx(body, "s32", x, y)` -> what `body` leaves in %d; with several result types a list of %d, %e."""

    def run(body: str, results: str | list[str], *inputs, codes: list[str] | None = None, target: str = "sm_90"):
        names = [results] if isinstance(results, str) else results
        kinds = codes or [_code_of(array.dtype) for array in inputs]
        size = len(inputs[0])
        outputs = [cp.empty(size, np.uint32 if code == "pred" else DTYPES[code]) for code in names]
        module = Module(ptx_of(body, names, kinds, target))
        arrays = [cp.asarray(np.ascontiguousarray(array)) for array in inputs]
        values, spans = Binder("k", module.code("k").parameters, None, cp.ndarray).bind([*outputs, *arrays])
        module.launch("k", (1, 1, 1), (size, 1, 1), values, spans)
        found = [
            out.get().astype(bool) if code == "pred" else out.get() for out, code in zip(outputs, names, strict=True)
        ]
        return found[0] if isinstance(results, str) else found

    return run


def _code_of(dtype: np.dtype) -> str:
    kind = {"i": "s", "u": "u", "f": "f"}[np.dtype(dtype).kind]
    return f"{kind}{8 * np.dtype(dtype).itemsize}"


@pytest.fixture
def compiler():
    """Skips where NVRTC's wheel is not installed."""
    try:
        return toolkit.find()
    except ToolkitMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
