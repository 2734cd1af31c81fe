// Mean squared error: the loss's partial sums and dx in one pass. In storages an element: 3.
#include "map.cuh"

// dx = 2 factor scale (x - target); partial[b] = factor times the sum of (x - target)^2 over block b. scale: one number, or
// null for 1.
extern "C" __global__ void mse(
    storage* dx, float* partial, const storage* x, const storage* target, const float* scale, float factor, offset n
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= n) return;
    __shared__ float scratch[WARP];
    const float slope = 2.0f * factor * (scale ? *scale : 1.0f);
    float sum = 0.0f;
    for (Part mine = my_part(n); mine.count; mine = next_part(mine, n)) {
        Pack p = load(x, mine);
        const Pack q = load(target, mine);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float difference = to_float(p.at[k]) - to_float(q.at[k]);  // beyond the end: 0
            sum += difference * difference;
            p.at[k] = from_float<storage>(slope * difference);
        }
        store(dx, mine, p);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = factor * sum;
}
