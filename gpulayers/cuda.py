"""The one file that imports CuPy, inside functions: finding the GPU, the kernel sources, and launching a kernel."""

import functools
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.backend import Array, array_module, is_array
from gpulayers.kernel_arguments import CParameter, check_arguments, parameters
from gpulayers.remedies import INSTALL


class GPUUnavailable(RuntimeError):
    """Asked for a GPU that cannot be used; the message is one sentence with the reason and the remedy."""


@functools.cache
def import_cupy() -> Any:
    """CuPy, after its first device call has succeeded; `GPUUnavailable` otherwise."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise GPUUnavailable(_sentence(f"CuPy cannot be imported ({error})")) from error
        raise GPUUnavailable(_sentence("CuPy is not installed")) from error
    except Exception as error:  # a broken wheel or a missing libcuda raises ImportError, OSError, RuntimeError ...
        raise GPUUnavailable(_sentence(f"CuPy cannot be imported ({_first_line(error)})")) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        if count:
            cupy.zeros(1).sum().item()
    except Exception as error:  # CuPy raises CUDARuntimeError, CompileException, RuntimeError ... on a first call
        raise GPUUnavailable(_sentence(f"the CUDA device does not answer ({_first_line(error)})")) from error
    if count == 0:
        raise GPUUnavailable(_sentence("CuPy finds no CUDA device"))
    return cupy


def _sentence(reason: str) -> str:
    return (
        f"no GPU can be used because {reason}: install an NVIDIA driver and the wheel for its CUDA version "
        f"({INSTALL['cuda12']}, or cuda13x), or choose the numpy backend"
    )


def _first_line(error: BaseException) -> str:
    """What went wrong at the bottom: CuPy wraps an ImportError in a page of advice that begins with a rule of '='."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line.strip("=- ")), type(error).__name__)


def import_emulated() -> Any:
    """The emulator's stand-in for CuPy: arrays in host memory, kernels run from their PTX on the CPU."""
    from gpulayers.emulator import cupy, toolkit

    toolkit.find()  # here, where nothing has begun, rather than at the first kernel
    return cupy


def import_nccl(xp: Any) -> Any:
    """`cupy.cuda.nccl`, of which `available` says whether CuPy has found NCCL; for the emulator its stand-in."""
    if xp.__name__ != "cupy":
        from gpulayers.emulator import nccl

        return nccl
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a page on how to install it
        from cupy.cuda import nccl as cupys
    return cupys


# ---------------------------------------------------------------------------------------------------- kernels


@functools.cache
def kernel_folder() -> Path:
    """The folder of the CUDA sources: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "common.cuh").is_file():
            return folder
    raise FileNotFoundError(
        f"the CUDA sources (common.cuh) are neither in {package} nor beside it: reinstall gpulayers"
    )


@functools.cache
def _headers_digest() -> str:
    """Of all our headers. CuPy's disk cache does not see an edit of an included file, so this goes in the options."""
    digest = hashlib.sha256()
    for header in sorted(kernel_folder().glob("*.cuh")):
        digest.update(header.read_bytes())
    return digest.hexdigest()[:16]


def kernel_source(name: str, storage: str) -> tuple[str, tuple[str, ...]]:
    """The text of kernels/<name>.cu and the compiler's options for a storage type, "float", "__half", ..."""
    options = (
        "-std=c++17",
        f"-I{kernel_folder()}",
        f"-DSTORAGE={storage}",
        f"-DHEADERS_DIGEST=0x{_headers_digest()}ull",
    )
    return (kernel_folder() / f"{name}.cu").read_text(encoding="utf-8"), options


@functools.cache
def _module(xp: Any, name: str, storage: str) -> Any:
    code, options = kernel_source(name, storage)
    return xp.RawModule(code=code, options=options)


@functools.cache
def _kernel(xp: Any, source: str, storage: str, function: str) -> Any:
    """Kept, for a kernel that CuPy has just handed out looks its module up again in every launch."""
    return _module(xp, source, storage).get_function(function)


@functools.cache
def _parameters(source: str, function: str) -> tuple[CParameter, ...]:
    return parameters(kernel_source(source, "float")[0], function)


STORAGE = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


def contiguous(array: Array) -> Array:
    """`array`, or a C-ordered copy of a strided view: a raw kernel sees a pointer and no strides."""
    return array if array.flags.c_contiguous else array_module(array).ascontiguousarray(array)


def row_threads(x: Array, most: int = 1024, packs: int = 1) -> int:
    """Threads for one block per row of (rows, cols): `packs` times 16 bytes each, whole warps, 32 to `most`."""
    packs = -(-x.shape[-1] * x.dtype.itemsize // (16 * packs))
    return min(most, max(32, -(-packs // 32) * 32))


def row_grid(rows: int, cols: int, itemsize: int) -> tuple[tuple[int], tuple[int, int]]:
    """(grid, block) for the kernels that hold a row in registers (kernels/rows.cuh): a warp for a short row, four of
    which share a block, or a block for a long one; four packs of 16 bytes for each thread, up to 512 threads."""
    threads = min(512, max(32, -(-cols * itemsize // (4 * 16 * 32)) * 32))
    rows_together = 4 if threads == 32 else 1
    return (-(-rows // rows_together),), (threads, rows_together)


def shared_memory(x: Array) -> int:
    """Bytes of shared memory that one block can have on the device of `x`."""
    return array_module(x).cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]


def launch(
    source: str,
    function: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: tuple[Array | np.generic | None, ...],
    *,
    storage: DTypeLike = np.float32,
    shared: int = 0,
) -> None:
    """Run `function` of `kernels/<source>.cu` on the current device and stream.

    `args`: outputs, inputs, sizes. Arrays must be C-contiguous (a raw kernel sees no strides); None is a null pointer.
    Scalars must be NumPy scalars of the exact C type, `numpy.float32(x)` or `numpy.int64(n)`: a bare Python number
    would reach the kernel as 8 bytes whatever the parameter is, so it is refused. A grid with a 0 is nothing to do.

    Raises TypeError for arguments of other types than the source declares, ValueError for an array that is not
    contiguous.
    """
    xp, storage = array_module(*(a for a in args if is_array(a))), np.dtype(storage)
    check_arguments(function, _parameters(source, function), storage, args)
    if 0 in grid:
        return
    kernel = _kernel(xp, source, STORAGE[storage.name], function)
    if shared:  # a block gets 48 KB, static arrays included, unless its kernel asks for more
        kernel.max_dynamic_shared_size_bytes = shared
    values = tuple(NULL if arg is None else arg for arg in args)
    if on_launch is None:
        kernel(grid, block, values, shared_mem=shared)
    else:
        on_launch(function, args, lambda: kernel(grid, block, values, shared_mem=shared))


NULL = np.uint64(0)  # None is no null pointer to all versions of CuPy (#9046)


on_launch: Callable[[str, tuple[Any, ...], Callable[[], None]], None] | None = None
"""Set while `gpulayers.profiling` records: called with the kernel's name, its arguments and the launch to make."""


class Work(NamedTuple):
    """The least that a call has to do: bytes read plus bytes written, and floating-point operations (0: not told)."""

    bytes: int
    operations: int = 0


WORK: dict[str, Callable[..., Work]] = {}
"""Kernel function -> the work of a launch with these arguments. A line beside the `cuda` body says more than `work_of`
assumes: `WORK["layernorm"] = lambda y, *rest: Work(bytes_of(y, *rest), 8 * y.size)`. Only profilers ask."""


def bytes_of(*args: Any) -> int:
    """Bytes of the arrays among `args`."""
    return sum(arg.nbytes for arg in args if is_array(arg))


def work_of(function: str, args: tuple[Any, ...]) -> Work:
    """What `WORK` says of a launch; by default every array argument is read or written once."""
    return WORK[function](*args) if function in WORK else Work(bytes_of(*args))


# ---------------------------------------------------------------------------------------------------- kept tables


def place_of(like: Array) -> tuple[Any, int]:
    """(module, number of the device) of an array: what a table that is kept for others of its place is found by."""
    xp = array_module(like)
    return xp, 0 if xp is np else like.device.id


def keep_on(xp: Any, device: int, *arrays: np.ndarray) -> tuple[Array, ...]:
    """Host arrays on a device of `xp`, to be kept and used from any stream.

    It waits, once, until they are there: the copies belong to the current stream, and nothing would order another
    stream's first use after them. So the first pass of a model cannot be one that is captured as a graph.
    """
    if xp is np:
        return arrays
    with xp.cuda.Device(device):
        there = tuple(xp.asarray(array) for array in arrays)
        xp.cuda.get_current_stream().synchronize()
    return there


# ---------------------------------------------------------------------------------------------------- errors
#
# A kernel cannot raise, and asking whether it would have to stops the GPU. So it leaves a note in a few numbers of
# device memory and goes on harmlessly. The optimizer's kernels see the note and change nothing; whoever next reads a
# number from the device calls `check_errors`.

ERROR_FIELDS = 4  # int64: code (0: no error), row, value, size: the value in that row is outside 0..size - 1
ERRORS = {  # the codes, as kernels/common.cuh has them
    1: "cross_entropy: target {value} in row {row} is outside 0..{last} (and is not ignore_index)",
    2: "Embedding: the id at position {row} is {value}, outside 0..{last}",
    3: "the length of sequence {row} is {value}, outside 0..{last}",
    4: "nll_loss: target {value} in row {row} is outside 0..{last} (and is not ignore_index)",
    5: "binary_cross_entropy: number {row} of the probabilities or of the targets is outside 0..1",
    6: "number {row} of the targets of an embedding loss is neither 1 nor -1",
}


def error_flag(like: Array) -> Array:
    """The error note of the device of `like`: int64 (4,), see `ERROR_FIELDS`. Always the same memory.

    The first kernel to report wins (`report_error` in common.cuh); a kernel that must not act on a spoilt pass looks at
    element 0.
    """
    return _error_flag(*place_of(like))


@functools.cache
def _error_flag(xp: Any, device: int) -> Array:
    return keep_on(xp, device, np.zeros(ERROR_FIELDS, np.int64))[0]


def check_errors(like: Array) -> None:
    """Raise what a kernel on the device of `like` has reported since the last call. Waits for the device.

    NumPy arrays have nothing to report: the CPU bodies raise at once. Rows count in the flattened ids or targets.

    Raises ValueError naming the first row found, its value and the range; the note is then cleared.
    """
    if array_module(like) is np:
        return
    flag = error_flag(like)
    code, row, value, size = flag.get().tolist()
    if code:
        flag.fill(0)
        raise ValueError(ERRORS[code].format(row=row, value=value, last=size - 1))
