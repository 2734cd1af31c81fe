// Layer normalisation over the last axis, forward and backward, with the addition of a residual branch.
//
// Fused: sum = x + f, mean, variance, normalisation, gain and bias in one launch; backward gives dx, with the gradient that
// reaches the sum by the residual added, and the sums for dweight and dbias in the same pass. See norm.cuh.
// In storages an element: forward 2, with the addition 4; backward 3, with the residual 4.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS) layernorm(
    storage* y, float* mean, float* rstd,
    const storage* x, const storage* weight, const storage* bias, float eps, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    norm_forward<true>(y, nullptr, mean, rstd, nullptr, x, nullptr, weight, bias, eps, rows, cols);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_layernorm(
    storage* sum, storage* y, float* mean, float* rstd,
    const storage* x, const storage* f, const storage* weight, const storage* bias, float eps, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    norm_forward<true>(y, sum, mean, rstd, nullptr, x, f, weight, bias, eps, rows, cols);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) layernorm_backward(
    storage* dx, float* partial,
    const storage* dy, const storage* residual, const storage* x, const float* mean, const float* rstd,
    const storage* weight, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    norm_backward<true>(dx, partial, dy, residual, x, mean, rstd, weight, rows, cols);
}
