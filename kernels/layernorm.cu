// Layer normalisation over the last axis, forward and backward.
//
// Fused: mean, variance, normalisation, gain and bias in one launch; backward gives dx and the sums for dweight and dbias
// in one pass over dy and x. The variance is that of x - mean (two passes): E[x^2] - E[x]^2 cancels when the mean is large.
// The row is read again for each pass, but from L1: a row of 768 bf16 is 1.5 KB.
#include "common.cuh"

// One block per row. y: (rows, cols). mean, rstd: (rows,). weight, bias: (cols,) or null.
extern "C" __global__ void layernorm(
    storage* y, float* mean, float* rstd,
    const storage* x, const storage* weight, const storage* bias, float eps, offset rows, int cols
) {
    const offset row = blockIdx.x;
    if (row >= rows) return;
    __shared__ float scratch[WARP];
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(y);
    x += row * cols;
    y += row * cols;

    float sum = 0.0f;
    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK) {
        const Pack p = load_pack(x + i, cols - i, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) sum += to_float(p.at[k]);  // beyond the row: 0
    }
    const float m = block_sum(sum, scratch) / cols;

    float squares = 0.0f;
    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK) {
        const Pack p = load_pack(x + i, cols - i, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float centred = i + k < cols ? to_float(p.at[k]) - m : 0.0f;
            squares += centred * centred;
        }
    }
    const float r = 1.0f / sqrtf(block_sum(squares, scratch) / cols + eps);
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = r;
    }

    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK) {
        Pack p = load_pack(x + i, cols - i, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            if (i + k >= cols) break;
            float value = (to_float(p.at[k]) - m) * r;
            if (weight) value *= to_float(weight[i + k]);
            if (bias) value += to_float(bias[i + k]);
            p.at[k] = from_float<storage>(value);
        }
        store_pack(y + i, p, cols - i, aligned);
    }
}

// Block b takes rows b, b + blocks, ... in that order and keeps its sums for dweight and dbias in shared memory: each
// thread owns its columns there, so they need no barrier. partial: (blocks, 2, cols), summed by layernorm_sum_partials in
// a fixed order: no atomics, the same bits every time.
extern "C" __global__ void layernorm_backward(
    storage* dx, float* partial,
    const storage* dy, const storage* x, const float* mean, const float* rstd, const storage* weight,
    offset rows, int cols
) {
    if (blockIdx.x >= rows) return;
    extern __shared__ float sums[];  // (2, cols): dweight, dbias
    __shared__ float scratch[WARP];
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(dy) && aligned16(dx);
    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK)
        for (int k = 0; k < PACK && i + k < cols; ++k) sums[i + k] = sums[cols + i + k] = 0.0f;

    for (offset row = blockIdx.x; row < rows; row += gridDim.x) {
        const offset start = row * cols;
        const float m = mean[row], r = rstd[row];
        float sum_g = 0.0f, sum_gx = 0.0f;
        for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK) {
            const Pack px = load_pack(x + start + i, cols - i, aligned), pdy = load_pack(dy + start + i, cols - i, aligned);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                if (i + k >= cols) break;
                const float xhat = (to_float(px.at[k]) - m) * r, d = to_float(pdy.at[k]);
                const float g = weight ? d * to_float(weight[i + k]) : d;
                sums[i + k] += d * xhat;
                sums[cols + i + k] += d;
                sum_g += g;
                sum_gx += g * xhat;
            }
        }
        const float mean_g = block_sum(sum_g, scratch) / cols, mean_gx = block_sum(sum_gx, scratch) / cols;
        for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK) {
            const Pack pdy = load_pack(dy + start + i, cols - i, aligned);
            Pack px = load_pack(x + start + i, cols - i, aligned);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                if (i + k >= cols) break;
                const float xhat = (to_float(px.at[k]) - m) * r, d = to_float(pdy.at[k]);
                const float g = weight ? d * to_float(weight[i + k]) : d;
                px.at[k] = from_float<storage>(r * (g - mean_g - xhat * mean_gx));
            }
            store_pack(dx + start + i, px, cols - i, aligned);
        }
    }

    partial += (offset)blockIdx.x * 2 * cols;
    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK)
        for (int k = 0; k < PACK && i + k < cols; ++k) {
            partial[i + k] = sums[i + k];
            partial[cols + i + k] = sums[cols + i + k];
        }
}

// total: (2, cols) = sum over blocks of partial (blocks, 2, cols), first block first. One thread per column.
extern "C" __global__ void layernorm_sum_partials(float* total, const float* partial, int blocks, int cols) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= 2 * cols) return;
    float sum = 0.0f;
    for (int b = 0; b < blocks; ++b) sum += partial[(offset)b * 2 * cols + i];
    total[i] = sum;
}
