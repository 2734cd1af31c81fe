// RMS normalisation over the last axis, forward and backward: LayerNorm without the mean. See norm.cuh.
//
// Fused: the mean square, normalisation and gain in one launch; dx and the sums for dweight in one pass.
// In storages an element: forward 2, backward 3.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rmsnorm(
    storage* y, float* rstd, const storage* x, const storage* weight, float eps, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    norm_forward<false>(y, nullptr, nullptr, rstd, nullptr, x, nullptr, weight, nullptr, eps, rows, cols);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rmsnorm_backward(
    storage* dx, float* partial, const storage* dy, const storage* x, const float* rstd, const storage* weight, offset rows,
    int cols
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    norm_backward<false>(dx, partial, dy, nullptr, x, nullptr, rstd, weight, rows, cols);
}
