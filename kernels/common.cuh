// What every kernel shares: the storage type, 16-byte loads, sums over a warp and a block.
//
// The storage type is chosen when a kernel is compiled: -DSTORAGE=float, __half or __nv_bfloat16. Arithmetic is always
// float. Offsets are 64 bits wide, because a batch of logits passes 2^31 elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef STORAGE
#define STORAGE float
#endif

typedef STORAGE storage;
typedef long long offset;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- float and back

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// s(x) = 1 / (1 + exp(-x)); exp overflows to inf on the left, and 1 / inf = 0.
__device__ __forceinline__ float logistic(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// ---- 16 bytes at a time

constexpr int PACK = 16 / sizeof(storage);  // elements of one 16-byte load

struct alignas(16) Pack {
    storage at[PACK];
};

__device__ __forceinline__ bool aligned16(const void* p) { return (reinterpret_cast<size_t>(p) & 15) == 0; }

// Up to PACK elements from p on, of which `left` belong to the row; the rest read as 0. `aligned`: p is, for all threads.
__device__ __forceinline__ Pack load_pack(const storage* p, int left, bool aligned) {
    if (aligned && left >= PACK) return *reinterpret_cast<const Pack*>(p);
    Pack out;
#pragma unroll
    for (int k = 0; k < PACK; ++k) out.at[k] = k < left ? p[k] : from_float<storage>(0.0f);
    return out;
}

__device__ __forceinline__ void store_pack(storage* p, const Pack& value, int left, bool aligned) {
    if (aligned && left >= PACK) {
        *reinterpret_cast<Pack*>(p) = value;
        return;
    }
#pragma unroll
    for (int k = 0; k < PACK; ++k)
        if (k < left) p[k] = value.at[k];
}

// ---- sums and maxima; every lane, or every thread of the block, gets the result

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// scratch: 32 floats of shared memory. The block is one-dimensional and a multiple of a warp.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    __syncthreads();  // scratch may be written again at once
    return x;
}

// ---- errors: a note in device memory, read by the host when it next waits anyway (gpulayers/cuda.py, `error_flag`)
//
// code, row, value, size: the value in that row is outside 0..size - 1. Code 0: nothing happened. Of a probability or a
// sign that is none, the row alone is told.

constexpr int BAD_TARGET = 1, BAD_ID = 2, BAD_LENGTH = 3, BAD_CLASS = 4, BAD_PROBABILITY = 5, BAD_SIGN = 6;

// The first report stays. Only errors[0] is contended; the other fields belong to the thread that won it.
__device__ __forceinline__ void report_error(long long* errors, int code, offset row, long long value, long long size) {
    if (atomicCAS(reinterpret_cast<unsigned long long*>(errors), 0ull, (unsigned long long)code) != 0) return;
    errors[1] = row;
    errors[2] = value;
    errors[3] = size;
}
