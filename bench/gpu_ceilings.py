"""What the card can do, measured at the start of every run: copying, reading, and a large bfloat16 product.

Datasheet figures are not used: a share of the floor is a share of what this card did in this run.
"""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from bench.gpu_cases import Draw
from bench.gpu_check import gather, widen
from bench.gpu_peers import to_array, to_tensor
from bench.gpu_timing import Timer
from gpulayers.ops.matmul import matmul
from gpulayers.verify.tolerances import RELATIVE, error


class Ceilings(NamedTuple):
    """Bytes a second (read plus written; only read), and bfloat16 operations a second (None: no product)."""

    copy: float
    read: float
    product: float | None
    how: dict[str, float]  # every way that was tried

    def floor_seconds(self, nbytes: float, written: float, flops: float) -> tuple[float, str]:
        """The least time, and which ceiling it comes from. What writes next to nothing is held to reading."""
        name = "read" if written < 0.05 * nbytes else "copy"
        floors = [(nbytes / (self.read if name == "read" else self.copy), name)]
        if flops and self.product:
            floors.append((flops / self.product, "product"))
        return max(floors)


COPY_BYTES = 4 << 30  # read plus written
PRODUCT = 8192

# 16 bytes a load, four loads on their way for each thread.
SOURCE = r"""
extern "C" __global__ void copy16(uint4* y, const uint4* x, long long n) {
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
        y[i] = a;
        y[i + step] = b;
        y[i + 2 * step] = c;
        y[i + 3 * step] = d;
    }
    for (; i < n; i += step) y[i] = x[i];
}

extern "C" __global__ void read16(unsigned* found, const uint4* x, long long n, unsigned never) {
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned all = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
        all += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) all += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
    if (all == never) *found = all;  // so that nothing is left out
}
"""


def measure(timer: Timer, draw: Draw, copy_bytes: int = COPY_BYTES, product: int = PRODUCT) -> Ceilings:
    how = _memory(timer, draw, copy_bytes)
    products = _products(timer, draw, product)
    return Ceilings(
        copy=max(how["copy, memcpy"], how["copy, kernel"]),
        read=max(how.values()),  # reading alone is never slower than what copying shows
        product=max(products.values(), default=None),
        how=how | products,
    )


def _memory(timer: Timer, draw: Draw, copy_bytes: int) -> dict[str, float]:
    xp = timer.xp
    source = draw.normal(copy_bytes // 8, dtype="float32")
    target, packs = xp.empty_like(source), source.nbytes // 16
    module = xp.RawModule(code=SOURCE, options=("-std=c++17",))
    copy, read = module.get_function("copy16"), module.get_function("read16")
    grid, block = (8 * xp.cuda.Device().attributes["MultiProcessorCount"],), (256,)
    found = xp.zeros(1, np.uint32)

    def memcpy() -> None:
        target[...] = source

    rates = {}
    for name, call, nbytes in (
        ("copy, memcpy", memcpy, 2 * source.nbytes),
        ("copy, kernel", lambda: copy(grid, block, (target, source, np.int64(packs))), 2 * source.nbytes),
        ("read", lambda: read(grid, block, (found, source, np.int64(packs), np.uint32(0x9E3779B9))), source.nbytes),
    ):
        if name.startswith("copy"):
            target.fill(float("nan"))
        rates[name] = nbytes / timer.hot(call).median
        if name.startswith("copy") and not bool((target == source).all()):
            raise RuntimeError(f"{name}: the copy is not equal to its source")
    return rates


def _products(timer: Timer, draw: Draw, size: int) -> dict[str, float]:
    """Rate of a square bfloat16 product on random data, by each library that is there. Each is checked first."""
    a, b = draw.normal(size, size, dtype="bfloat16"), draw.normal(size, size, dtype="bfloat16")
    rows = np.array([0, size // 2, size - 1])
    exact = widen(gather(a, rows)) @ widen(gather(b, None))
    rates = {}
    for name, make in (("product, CuPy", _cupy_product), ("product, PyTorch", _torch_product)):
        try:
            made = make(timer, a, b)
            if made is None:
                continue
            call, result = made
            call()
            found = error(widen(result(rows)), exact)
            if not found <= RELATIVE["bfloat16"]:
                raise ValueError(f"error {found:.1e} against float64")
            rates[name] = 2 * size**3 / timer.hot(call).median
        except Exception as problem:  # a ceiling less, by whatever a library raises, must not end the run
            print(f"{name}: not measured ({type(problem).__name__}: {problem})")
    return rates


def _cupy_product(timer: Timer, a: Any, b: Any) -> tuple[Any, Any]:
    """cuBLAS as CuPy offers it. `cupy.matmul` refuses bfloat16, so this calls the routine itself."""
    xp, n = timer.xp, len(a)
    out = xp.empty((n, n), ml_dtypes.bfloat16)
    out.view(np.uint16).fill(0xFFFF)  # NaN
    if not hasattr(xp.cuda.Device, "cublas_handle"):  # the emulated device has no cuBLAS
        return lambda: matmul(a, b, out=out), lambda rows: gather(out, rows)
    gemm, handle = xp.cuda.cublas.gemmEx, xp.cuda.Device().cublas_handle
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    # cuBLAS counts columns first, and so sees every array transposed: (a b)' = b' a'
    operands = (one.ctypes.data, b.data.ptr, BFLOAT16, n, a.data.ptr, BFLOAT16, n)
    result = (zero.ctypes.data, out.data.ptr, BFLOAT16, n, COMPUTE_FLOAT, DEFAULT_ALGORITHM)

    def call(keep: Any = (one, zero, a, b)) -> None:
        gemm(handle, 0, 0, n, n, n, *operands, *result)

    return call, lambda rows: gather(out, rows)


# CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT of the CUDA headers
BFLOAT16, COMPUTE_FLOAT, DEFAULT_ALGORITHM = 14, 68, -1


def _torch_product(timer: Timer, a: Any, b: Any) -> tuple[Any, Any] | None:
    if timer.torch is None:
        return None
    torch = timer.torch
    left, right = to_tensor(torch, a), to_tensor(torch, b)
    out = torch.full_like(left, float("nan"))
    return lambda: torch.mm(left, right, out=out), lambda rows: to_array(out[rows.tolist()])
