"""How fast the emulator is: `python -m gpulayers.emulator.speed` prints thread-instructions a second, checks on."""

from __future__ import annotations

import time

import numpy as np

from gpulayers.emulator import cupy as cp
from gpulayers.emulator.settings import record_launches, using

SOURCE = """
extern "C" __global__ void update(float* p, float* m, float* v, const float* g, long long n) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += stride) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        p[i] -= 1e-3f * m[i] / (sqrtf(v[i]) + 1e-8f);
    }
}
__device__ float block_sum(float x) {
    __shared__ float part[32];
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : 0.0f;
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    __syncthreads();
    return x;
}
extern "C" __global__ void softmax_rows(float* y, const float* x, int cols) {
    extern __shared__ float row[];
    x += (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += row[i] = __expf(x[i]);
    sum = block_sum(sum);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[(long long)blockIdx.x * cols + i] = row[i] / sum;
}
extern "C" __global__ void column_sums(float* out, const float* x, int rows, int cols) {
    for (int r = blockIdx.x; r < rows; r += gridDim.x)
        for (int c = threadIdx.x; c < cols; c += blockDim.x) atomicAdd(&out[c], x[(long long)r * cols + c]);
}
"""


def run_all() -> None:
    """Launch each kernel once on arrays of some 100 000 elements."""
    module, rng = cp.RawModule(code=SOURCE), np.random.default_rng(0)
    n, rows, cols = 200_003, 128, 1023
    p, m, v, g = (cp.asarray(rng.random(n, np.float32)) for _ in range(4))
    module.get_function("update")((64,), (256,), (p, m, v, g, np.int64(n)))
    x, y = cp.asarray(rng.standard_normal((rows, cols), np.float32)), cp.empty((rows, cols), np.float32)
    module.get_function("softmax_rows")((rows,), (256,), (y, x, np.int32(cols)), shared_mem=4 * cols)
    sums = cp.zeros(cols, np.float32)
    module.get_function("column_sums")((16,), (256,), (sums, x, np.int32(rows), np.int32(cols)))


def measure() -> dict[str, float]:
    """Million thread-instructions a second of each kernel: the best of three runs, after one that compiles."""
    run_all()
    best: dict[str, float] = {}
    for _ in range(3):
        with record_launches() as launches:
            run_all()
        for one in launches:
            best[one.kernel] = max(best.get(one.kernel, 0.0), one.instructions / one.seconds / 1e6)
    return best


def main() -> None:
    """Print the table."""
    for arch in ("compute_75", "compute_90"):
        for check_races in (True, False):
            with using(arch=arch, check_races=check_races):
                start = time.perf_counter()
                rates = measure()
            what = "with all checks" if check_races else "without race checks"
            print(f"{arch}, {what} ({time.perf_counter() - start:.1f} s):")
            for kernel, rate in rates.items():
                print(f"  {kernel:14s} {rate:6.1f} million thread-instructions a second")


if __name__ == "__main__":
    main()
