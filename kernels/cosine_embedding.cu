// Cosine embedding loss: loss and both gradients of each row in one launch. Three sums in a first pass over the row, both
// gradients in a second, which mostly reads the L2 cache. In storages an element of a row: 6, 4 of them from memory.
#include "rows.cuh"

// One block per row. losses: (rows,), not scaled. dx1, dx2, x1, x2: (rows, cols). target: (rows,), 1 or -1. scale: one
// number, or null for 1. errors: the device's error note.
extern "C" __global__ void __launch_bounds__(512) cosine_embedding(
    float* losses, storage* dx1, storage* dx2, long long* errors,
    const storage* x1, const storage* x2, const storage* target, const float* scale,
    float margin, float factor, offset rows, int cols
) {
    const offset r = blockIdx.x;
    if (r >= rows) return;
    __shared__ float scratch[WARP];
    x1 += r * cols;
    x2 += r * cols;
    dx1 += r * cols;
    dx2 += r * cols;
    Row row(x1, cols);
    row.also(x2);
    row.also(dx1);
    row.also(dx2);

    const storage zero = from_float<storage>(0.0f);
    float product = 0.0f, square1 = 0.0f, square2 = 0.0f;
    for (int j = threadIdx.x; j < row.packs; j += blockDim.x) {
        float a[PACK], b[PACK];
        to_floats(row.load(x1, j, zero), a);
        to_floats(row.load(x2, j, zero), b);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            product += a[k] * b[k];
            square1 += a[k] * a[k];
            square2 += b[k] * b[k];
        }
    }
    product = row_sum(product, scratch);
    square1 = row_sum(square1, scratch) + 1e-12f;
    square2 = row_sum(square2, scratch) + 1e-12f;

    const float norms = sqrtf(square1) * sqrtf(square2), cosine = product / norms, excess = cosine - margin;
    const float t = to_float(target[r]);
    const bool alike = t == 1.0f, bad = t != 1.0f && t != -1.0f, nan = t != t;
    float slope = (alike ? -1.0f : excess < 0.0f ? 0.0f : 1.0f) * factor * (scale ? *scale : 1.0f);
    if (nan) slope = t;
    const float same = slope / norms, own1 = slope * cosine / square1, own2 = slope * cosine / square2;
    for (int j = threadIdx.x; j < row.packs; j += blockDim.x) {
        float a[PACK], b[PACK], d1[PACK], d2[PACK];
        to_floats(row.load(x1, j, zero), a);
        to_floats(row.load(x2, j, zero), b);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            d1[k] = bad && !nan ? 0.0f : same * b[k] - own1 * a[k];
            d2[k] = bad && !nan ? 0.0f : same * a[k] - own2 * b[k];
        }
        row.store(dx1, j, from_floats(d1));
        row.store(dx2, j, from_floats(d2));
    }
    if (threadIdx.x > 0) return;
    losses[r] = bad ? __int_as_float(0x7fffffff) : alike ? 1.0f - cosine : excess < 0.0f ? 0.0f : excess;
    if (bad && !nan) report_error(errors, BAD_SIGN, r, 0, 0);
}
