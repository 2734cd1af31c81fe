// Cross-entropy of logits and probabilities of the classes: loss and gradient of each row in one launch.
//
// Fused: the sum of exponentials (online softmax) and the sum of the targets in one pass over the row, loss and gradient in
// a second. Logits and targets are read twice, the second time mostly from the L2 cache, and dlogits is written once: 5
// storages an element. Holding the row in shared memory, as cross_entropy.cu does, would hold two of them here.
#include "rows.cuh"

// a_c = weight_c (keep t_c + spread); 0 outside of the row
__device__ __forceinline__ float coefficient(float t, int c, int cols, float keep, float spread, const float* weight) {
    if (c < 0 || c >= cols) return 0.0f;
    const float a = keep * t + spread;
    return weight ? a * weight[c] : a;
}

// One block per row. losses: (rows,), not scaled. dlogits: (rows, cols), may be logits. targets: (rows, cols). weight:
// (cols,), or null for 1. scale: one number, or null for 1.
extern "C" __global__ void __launch_bounds__(512) soft_cross_entropy(
    float* losses, storage* dlogits, const storage* logits, const storage* targets, const float* weight, const float* scale,
    float smoothing, float z_loss, offset rows, int cols
) {
    const offset r = blockIdx.x;
    if (r >= rows) return;
    __shared__ Total scratch[WARP];
    __shared__ float sums[WARP];
    const storage *x = logits + r * cols, *t = targets + r * cols;
    storage* dx = dlogits + r * cols;
    Row row(x, cols);
    row.also(t);
    row.also(dx);

    const storage nothing = from_float<storage>(minus_infinity()), zero = from_float<storage>(0.0f);
    const float keep = 1.0f - smoothing, spread = smoothing / cols, by = scale ? *scale : 1.0f;
    Total total = {LOWEST, 0.0f};
    float mass = 0.0f;
    for (int j = threadIdx.x; j < row.packs; j += blockDim.x) {
        float v[PACK], q[PACK];
        to_floats(row.load(x, j, nothing), v);
        to_floats(row.load(t, j, zero), q);
        total.add(v);
#pragma unroll
        for (int k = 0; k < PACK; ++k) mass += coefficient(q[k], row.first(j) + k, cols, keep, spread, weight);
    }
    total = row_total(total, scratch);
    mass = row_sum(mass, sums);

    const float log_sum = logf(total.sum), lse = total.peak + log_sum;
    const float factor = (mass + 2.0f * z_loss * lse) * by / total.sum;
    float along = 0.0f;
    for (int j = threadIdx.x; j < row.packs; j += blockDim.x) {
        float v[PACK], q[PACK];
        to_floats(row.load(x, j, nothing), v);
        to_floats(row.load(t, j, zero), q);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float shifted = v[k] - total.peak;
            const float a = coefficient(q[k], row.first(j) + k, cols, keep, spread, weight);
            if (a != 0.0f) along += a * shifted;  // 0 log 0 = 0
            v[k] = fast_exp(shifted) * factor - a * by;
        }
        row.store(dx, j, from_floats(v));
    }
    along = row_sum(along, sums);
    if (threadIdx.x > 0) return;
    losses[r] = (z_loss > 0.0f ? z_loss * lse * lse : 0.0f) + mass * log_sum - along;
}
