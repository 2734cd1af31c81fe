// Negative log-likelihood of class ids: the loss of each row and a gradient that is 0 but for one place, in one launch. The
// gradient is all that is written; of x only the targets' places are read. A row's loss is written by the thread that holds
// its target, or its first column if it has none.
#include "map.cuh"

// losses: (rows,), not scaled. dx, x: (rows, cols). targets: (rows,). weight: (cols,), or null for 1. scale: one number, or
// null for 1. errors: the device's error note. A target out of range is noted, and its row has loss NaN and gradient 0.
extern "C" __global__ void nll(
    float* losses, storage* dx, long long* errors,
    const storage* x, const long long* targets, const float* weight, const float* scale,
    long long ignore_index, offset rows, int cols
) {
    const Part mine = my_part(rows * cols);
    if (!mine.count) return;
    const float by = scale ? *scale : 1.0f;
    offset r = mine.first / cols;
    int c = (int)(mine.first - r * cols);
    Pack out = {};
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        if (k >= mine.count) break;
        const long long target = targets[r];
        const bool counts = target != ignore_index && target >= 0 && target < cols;
        if (counts && c == target) {
            const float w = weight ? weight[c] : 1.0f;
            losses[r] = w == 0.0f ? 0.0f : -w * to_float(x[mine.first + k]);  // 0 log 0 = 0
            out.at[k] = from_float<storage>(-w * by);
        } else if (!counts && c == 0) {
            const bool ignored = target == ignore_index;
            losses[r] = ignored ? 0.0f : __int_as_float(0x7fffffff);
            if (!ignored) report_error(errors, BAD_CLASS, r, target, cols);
        }
        if (++c == cols) {
            c = 0;
            ++r;
        }
    }
    store(dx, mine, out);
}
