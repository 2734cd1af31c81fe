// Normalisation of rows, forward and backward: LayerNorm (CENTRED), RMSNorm, and forward GroupNorm.
//
// A block is (threads of a row, rows): up to 256 threads, with as few for a row that each reads about four times 16 bytes, so
// that rows up to 1024 half-precision columns belong to one warp and need no barrier at all. A row is read again for each
// pass over it, but then from L1: 768 columns of bf16 are 1.5 KB.
#pragma once

#include "common.cuh"

constexpr int NORM_THREADS = 256;  // of a block at most

// Sums of a and b over the threads of this thread's row. scratch: 32 pairs of shared memory.
__device__ __forceinline__ float2 row_sums(float a, float b, float2* scratch) {
    a = warp_sum(a);
    b = warp_sum(b);
    const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    if (warps == 1) return make_float2(a, b);
    scratch += threadIdx.y * warps;
    if (lane == 0) scratch[threadIdx.x / WARP] = make_float2(a, b);
    __syncthreads();
    const float2 part = lane < warps ? scratch[lane] : make_float2(0.0f, 0.0f);
    __syncthreads();  // scratch may be written again at once
    return make_float2(warp_sum(part.x), warp_sum(part.y));
}

// v[i], v[i + 1], ... or PACK times `otherwise` if v is null.
__device__ __forceinline__ Pack load_or(const storage* v, int i, int left, bool aligned, float otherwise) {
    if (v) return load_pack(v + i, left, aligned);
    Pack out;
#pragma unroll
    for (int k = 0; k < PACK; ++k) out.at[k] = from_float<storage>(otherwise);
    return out;
}

// The same where `positions` columns of the row belong to one channel and v has a number for each channel.
__device__ __forceinline__ Pack load_of_channels(const storage* v, int i, int left, int positions, float otherwise) {
    Pack out;
    int channel = i / positions, position = i - channel * positions;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        out.at[k] = v && k < left ? v[channel] : from_float<storage>(otherwise);
        if (++position < positions) continue;
        position = 0;
        ++channel;
    }
    return out;
}

// Elements i, ... of the row: x, or x + f rounded to storage if f is not null.
__device__ __forceinline__ Pack load_added(const storage* x, const storage* f, offset i, int left, bool aligned) {
    Pack p = load_pack(x + i, left, aligned);
    if (!f) return p;
    const Pack q = load_pack(f + i, left, aligned);
#pragma unroll
    for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(to_float(p.at[k]) + to_float(q.at[k]));
    return p;
}

// y, sum, x, f: (rows, cols); sum = x + f is normalised, or x if f and sum are null. mean, rstd, var: (rows,) or null.
// weight, bias: (cols,), or null, or a number for every `positions` columns if that is not 0.
//
// The variance is that of x - mean: E[x^2] - E[x]^2 cancels when the mean is large. A mean far from 0 is off by a rounding of
// its own size; `rest`, the mean of what is left, corrects it, and costs no pass of its own. Up to four standard
// deviations from 0 (as in `centre_rows` of ops/layernorm.py) it would correct an ulp of the mean at most, and the roundings of
// x - mean, which it also sums, may be more than that: a mean of 0.01 lost two digits.
template <bool CENTRED>
__device__ __forceinline__ void norm_forward(
    storage* y, storage* sum, float* mean, float* rstd, float* var, const storage* x, const storage* f,
    const storage* weight, const storage* bias, float eps, offset rows, int cols, int positions = 0
) {
    __shared__ float2 scratch[WARP];
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(y) && aligned16(f) && aligned16(sum);
    const bool vectors = aligned && aligned16(weight) && aligned16(bias);
    const offset row = (offset)blockIdx.x * blockDim.y + threadIdx.y;
    const int length = row < rows ? cols : 0;  // threads beyond the last row only keep the barriers company
    const offset start = row * cols;
    const int first = threadIdx.x * PACK, step = blockDim.x * PACK;

    float m = 0.0f;
    if (CENTRED) {
        float total = 0.0f;
        for (int i = first; i < length; i += step) {
            const Pack p = load_added(x, f, start + i, length - i, aligned);
#pragma unroll
            for (int k = 0; k < PACK; ++k) total += to_float(p.at[k]);  // beyond the row: 0
        }
        m = row_sums(total, 0.0f, scratch).x / cols;
    }
    float left_over = 0.0f, squares = 0.0f;
    for (int i = first; i < length; i += step) {
        const Pack p = load_added(x, f, start + i, length - i, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float centred = i + k < length ? to_float(p.at[k]) - m : 0.0f;
            if (CENTRED) left_over += centred;
            squares += centred * centred;
        }
    }
    const float2 total = row_sums(left_over, squares, scratch);
    const float rest = CENTRED && m * m > 16.0f * (total.y / cols) ? total.x / cols : 0.0f;
    const float spread = total.y / cols - rest * rest;
    const float variance = spread < 0.0f ? 0.0f : spread;  // fmaxf would hide a NaN
    const float r = 1.0f / sqrtf(variance + eps);
    if (length && threadIdx.x == 0) {
        if (mean) mean[row] = m + rest;
        if (rstd) rstd[row] = r;
        if (var) var[row] = variance;
    }
    for (int i = first; i < length; i += step) {
        const int left = length - i;
        Pack p = load_added(x, f, start + i, left, aligned);
        if (sum) store_pack(sum + start + i, p, left, aligned);
        const Pack w = positions ? load_of_channels(weight, i, left, positions, 1.0f) : load_or(weight, i, left, vectors, 1.0f);
        const Pack b = positions ? load_of_channels(bias, i, left, positions, 0.0f) : load_or(bias, i, left, vectors, 0.0f);
#pragma unroll
        for (int k = 0; k < PACK; ++k)
            p.at[k] = from_float<storage>((to_float(p.at[k]) - m - rest) * r * to_float(w.at[k]) + to_float(b.at[k]));
        store_pack(y + start + i, p, left, aligned);
    }
}

// dx = residual + r (g - mean(g) - xhat mean(g xhat)), g = dy weight, in one pass with the sums for dweight and dbias.
//
// A block takes rows in a fixed order, each row of threads adding to sums of its own in shared memory, where each thread
// owns its columns; `sums` must hold blockDim.y (SUMS, steps PACK blockDim.x) floats, steps = cols / (blockDim.x PACK) rounded
// up. partial: (gridDim.x, SUMS, cols), the sums over the block's rows; SUMS is 2 (dweight, dbias), or 1 for RMSNorm.
// residual: (rows, cols) or null.
template <bool CENTRED>
__device__ __forceinline__ void norm_backward(
    storage* dx, float* partial, const storage* dy, const storage* residual, const storage* x, const float* mean,
    const float* rstd, const storage* weight, offset rows, int cols
) {
    constexpr int SUMS = CENTRED ? 2 : 1;
    extern __shared__ float sums[];
    __shared__ float2 scratch[WARP];
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(dy) && aligned16(dx) && aligned16(residual);
    const bool vectors = aligned && aligned16(weight);
    const int first = threadIdx.x * PACK, step = blockDim.x * PACK;
    const int padded = (cols + step - 1) / step * step;  // columns, such that each thread has the same number
    float* const dweight = sums + threadIdx.y * SUMS * padded + threadIdx.x;  // column i + k is at [i + k blockDim.x]
    float* const dbias = dweight + padded;
    for (int i = 0; i < SUMS * padded; i += blockDim.x) dweight[i] = 0.0f;

    for (offset top = (offset)blockIdx.x * blockDim.y; top < rows; top += (offset)gridDim.x * blockDim.y) {
        const offset row = top + threadIdx.y, start = row * cols;
        const int length = row < rows ? cols : 0;
        const float m = CENTRED && length ? mean[row] : 0.0f, r = length ? rstd[row] : 0.0f;
        float sum_g = 0.0f, sum_gx = 0.0f;
        for (int i = first; i < length; i += step) {
            const Pack px = load_pack(x + start + i, length - i, aligned);
            const Pack pdy = load_pack(dy + start + i, length - i, aligned);
            const Pack w = load_or(weight, i, length - i, vectors, 1.0f);
            const int own = i - first;
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float xhat = (to_float(px.at[k]) - m) * r, d = to_float(pdy.at[k]);  // beyond the row: d is 0
                const float g = d * to_float(w.at[k]);
                dweight[own + k * blockDim.x] += d * xhat;
                if (CENTRED) dbias[own + k * blockDim.x] += d;
                sum_g += g;
                sum_gx += g * xhat;
            }
        }
        const float2 total = row_sums(sum_g, sum_gx, scratch);
        const float mean_g = CENTRED ? total.x / cols : 0.0f, mean_gx = total.y / cols;
        for (int i = first; i < length; i += step) {
            Pack px = load_pack(x + start + i, length - i, aligned);
            const Pack pdy = load_pack(dy + start + i, length - i, aligned);
            const Pack w = load_or(weight, i, length - i, vectors, 1.0f);
            Pack more = {};
            if (residual) more = load_pack(residual + start + i, length - i, aligned);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float xhat = (to_float(px.at[k]) - m) * r, g = to_float(pdy.at[k]) * to_float(w.at[k]);
                px.at[k] = from_float<storage>(to_float(more.at[k]) + r * (g - mean_g - xhat * mean_gx));
            }
            store_pack(dx + start + i, px, length - i, aligned);
        }
    }

    __syncthreads();  // the sums of all rows of threads, first row first
    partial += (offset)blockIdx.x * SUMS * cols;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < SUMS * padded; i += blockDim.x * blockDim.y) {
        float total = 0.0f;
        for (int y = 0; y < blockDim.y; ++y) total += sums[y * SUMS * padded + i];
        const int place = i % padded, within = place % step;
        const int col = place - within + within % blockDim.x * PACK + within / blockDim.x;
        if (col < cols) partial[i / padded * cols + col] = total;
    }
}
