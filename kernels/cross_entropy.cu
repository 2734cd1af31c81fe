// Cross-entropy of logits and integer targets: loss and gradient of each row in one launch.
//
// Fused: maximum and sum of exponentials in one pass over the row (online softmax), then loss and gradient in a second. A
// row that fits in shared memory is kept there in between, so global memory is read once and written once: 2 itemsize bytes
// an element; a longer row is read twice. Two exponentials an element would take about half of the time that the bytes take
// (bfloat16, an H100's data sheet), so the sum is rescaled by pack, not by element. The target's own term is added by one
// thread at the end: comparing every index with the target would cost two instructions an element.
#include "rows.cuh"

constexpr int UNROLL = 4;  // packs that a thread has in flight

struct Gradient {  // exp(x - peak) factor - spread weight
    float peak, factor, spread;
    const float* weight;  // (cols,), or null for 1
};

// Writes the gradient without the target's term. Returns the thread's part of the sum of weight (x - peak), if SMOOTH.
template <bool SMOOTH>
__device__ __forceinline__ float write_gradient(
    storage* dx, const storage* x, const Pack* kept, bool cached, const Row& row, const Gradient& g
) {
    const storage nothing = from_float<storage>(minus_infinity());
    float smooth = 0.0f;
    for (int start = threadIdx.x; start < row.packs; start += UNROLL * blockDim.x) {
        Pack p[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const int j = start + i * blockDim.x;
            if (j < row.packs) p[i] = cached ? kept[j] : row.load(x, j, nothing);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            float v[PACK];
            to_floats(p[i], v);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float shifted = v[k] - g.peak;
                v[k] = fast_exp(shifted) * g.factor;
                const int c = row.first(j) + k;
                if (SMOOTH && c >= 0 && c < row.cols) {
                    const float w = g.weight ? g.weight[c] : 1.0f;
                    if (w != 0.0f) smooth += w * shifted;  // a class of weight 0 counts nothing even at -inf
                    v[k] -= g.spread * w;
                }
            }
            row.store(dx, j, from_floats(v));
        }
    }
    return smooth;
}

// One block per row. losses: (rows,), not scaled. dlogits: (rows, cols), may be logits. errors: the device's error note.
// targets: (rows,). weight: (cols,), or null for 1, and weight_sum, its sum. scale: one number, or null for 1. cached: a row
// fits in dynamic shared memory. A target out of range is noted, and its row has loss NaN and gradient 0.
extern "C" __global__ void __launch_bounds__(1024) cross_entropy(
    float* losses, storage* dlogits, long long* errors,
    const storage* logits, const long long* targets, const float* weight, const float* weight_sum, const float* scale,
    long long ignore_index, float smoothing, float z_loss, offset rows, int cols, bool cached
) {
    const offset r = blockIdx.x;
    if (r >= rows) return;
    extern __shared__ Pack kept[];
    __shared__ Total scratch[WARP];
    __shared__ float sums[WARP];
    const storage* x = logits + r * cols;
    storage* dx = dlogits + r * cols;
    Row row(x, cols);
    row.also(dx);

    const long long target = targets[r];
    const bool ignored = target == ignore_index;
    if (ignored || target < 0 || target >= cols) {
        if (threadIdx.x == 0) {
            losses[r] = ignored ? 0.0f : __int_as_float(0x7fffffff);
            if (!ignored) report_error(errors, BAD_TARGET, r, target, cols);
        }
        const Pack zeros = {};
        for (int j = threadIdx.x; j < row.packs; j += blockDim.x) row.store(dx, j, zeros);
        return;
    }
    const float x_target = to_float(x[target]);  // before anything is written over it

    const storage nothing = from_float<storage>(minus_infinity());
    Total total = {LOWEST, 0.0f};
    for (int start = threadIdx.x; start < row.packs; start += UNROLL * blockDim.x) {
        Pack p[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const int j = start + i * blockDim.x;
            if (j < row.packs) p[i] = row.load(x, j, nothing);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            if (cached) kept[j] = p[i];  // read by this thread alone
            float v[PACK];
            to_floats(p[i], v);
            total.add(v);
        }
    }
    total = row_total(total, scratch);

    const float w = weight ? weight[target] : 1.0f, by = scale ? *scale : 1.0f;
    const float hit = (1.0f - smoothing) * w, spread = smoothing / cols, all_spread = spread * (weight_sum ? *weight_sum : cols);
    const float log_sum = logf(total.sum), lse = total.peak + log_sum;
    const float factor = (hit + all_spread + 2.0f * z_loss * lse) * by / total.sum;
    const Gradient gradient = {total.peak, factor, spread * by, weight};
    float smooth = 0.0f;
    if (smoothing > 0.0f) {
        smooth = block_sum(write_gradient<true>(dx, x, kept, cached, row, gradient), sums);
    } else {
        write_gradient<false>(dx, x, kept, cached, row, gradient);
        __syncthreads();  // the target's gradient is written again, below
    }
    if (threadIdx.x > 0) return;
    const float shifted = x_target - total.peak;
    dx[target] = from_float<storage>(fast_exp(shifted) * factor - (hit + spread * w) * by);
    float loss = z_loss > 0.0f ? z_loss * lse * lse : 0.0f;
    if (hit != 0.0f) loss += hit * (log_sum - shifted);  // 0 log 0 = 0
    if (smoothing > 0.0f) loss += all_spread * log_sum - spread * smooth;
    losses[r] = loss;
}
