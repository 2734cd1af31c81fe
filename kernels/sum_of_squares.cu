// total = sum of x^2, or of min(|x|, limit)^2, in double and in a fixed order: a fixed grid of partial sums, then one block.
//
// The squares of one 16-byte load are added in float, and join the double sum only then: double arithmetic runs at 1/64 of
// the float rate on consumer cards, and would bind there. Where a square may have left float's range, and where there is a
// limit, the load is done again in double, so nothing overflows and nothing vanishes. Bytes an element: one read.
#include "common.cuh"

constexpr int LOADS = 4;  // 16-byte loads that a thread has in flight
constexpr float SAFE_LOW = 1e-25f, SAFE_HIGH = 3e38f;  // a float sum between them has lost no digit to either end

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// Thread 0 gets the sum over the block. scratch: 32 doubles of shared memory, used once.
__device__ __forceinline__ double block_sum(double x, double* scratch) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return warp == 0 ? warp_sum(lane < warps ? scratch[lane] : 0.0) : 0.0;
}

__device__ __forceinline__ double squares(const Pack& p, const double* limit) {
    float quick = 0.0f;
#pragma unroll
    for (int k = 0; k < PACK; ++k) quick += to_float(p.at[k]) * to_float(p.at[k]);
    if (!limit && quick > SAFE_LOW && quick < SAFE_HIGH) return quick;
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const double x = to_float(p.at[k]);
        const double magnitude = limit && fabs(x) > *limit ? *limit : x;  // NaN stays NaN
        sum += magnitude * magnitude;
    }
    return sum;
}

// partial: (blocks,). x: (size,), at any alignment. limit: (1,) or null.
extern "C" __global__ void sum_of_squares(double* partial, const storage* x, const double* limit, offset size) {
    __shared__ double scratch[WARP];
    const bool aligned = aligned16(x);
    const offset stride = (offset)gridDim.x * blockDim.x * PACK;
    double sum = 0.0;
    for (offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK; i < size; i += LOADS * stride) {
        Pack packs[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
            const offset left = size - i - k * stride;
            packs[k] = load_pack(x + i + k * stride, left < PACK ? (int)left : PACK, aligned);
        }
#pragma unroll
        for (int k = 0; k < LOADS; ++k) sum += squares(packs[k], limit);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// total: (1,) = sum of partial (blocks,). One block.
extern "C" __global__ void sum_of_squares_total(double* total, const double* partial, int blocks) {
    __shared__ double scratch[WARP];
    double sum = 0.0;
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) sum += partial[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) *total = sum;
}
