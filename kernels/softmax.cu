// Softmax, its logarithm and softmin over rows, forward and backward.
//
// Fused: the whole row function in one launch. A row stays in the registers of a warp (up to 1024 halfs or 512 floats) or of
// a block (16384 or 8192), so it is read once: 2 itemsize bytes an element forward, 3 backward; a longer one is read twice.
// Online softmax needs one reduction over the threads where maximum, then sum, would need two.
#include "rows.cuh"

__device__ __forceinline__ void load_held(float* v, const storage* x, const Row& row, int start, float outside) {
    Pack p[HELD];
    const storage nothing = from_float<storage>(outside);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int j = start + i * blockDim.x;
        if (j < row.packs) {
            p[i] = row.load(x, j, nothing);
        } else {
            for (int k = 0; k < PACK; ++k) p[i].at[k] = nothing;
        }
    }
#pragma unroll
    for (int i = 0; i < HELD; ++i) to_floats(p[i], v + i * PACK);
}

enum Kind { SOFTMAX, LOG_SOFTMAX, SOFTMIN };  // softmin is the softmax of -x

template <int KIND>
__device__ __forceinline__ void load_signed(float* v, const storage* x, const Row& row, int start) {
    load_held(v, x, row, start, KIND == SOFTMIN ? -minus_infinity() : minus_infinity());
    if (KIND == SOFTMIN) {
#pragma unroll
        for (int k = 0; k < HELD * PACK; ++k) v[k] = -v[k];
    }
}

template <int KIND>
__device__ __forceinline__ void forward(storage* y, const storage* x, offset rows, int cols) {
    if (row_index() >= rows) return;
    constexpr bool LOG = KIND == LOG_SOFTMAX;
    __shared__ Total scratch[WARP];
    x += row_index() * cols;
    y += row_index() * cols;
    Row row(x, cols);
    row.also(y);

    float v[HELD * PACK];
    Total own = {LOWEST, 0.0f};
    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        load_signed<KIND>(v, x, row, start);
        if (LOG) own.add(v);
        else own.exponentiate(v);
    }
    const Total total = row_total(own, scratch);
    const float log_sum = total.sum == 0.0f ? 0.0f : logf(total.sum);  // a row of -inf has no distribution
    const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
    const float own_inverse = fast_exp(own.peak - total.peak) * inverse;

    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        if (!once(row)) load_signed<KIND>(v, x, row, start);
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            float* at = v + i * PACK;
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                if (LOG) at[k] = at[k] - total.peak - log_sum;
                else at[k] = once(row) ? at[k] * own_inverse : fast_exp(at[k] - total.peak) * inverse;
            }
            row.store(y, j, from_floats(at));
        }
    }
}

template <int KIND>
__device__ __forceinline__ void backward(storage* dx, const storage* dy, const storage* y, offset rows, int cols) {
    if (row_index() >= rows) return;
    constexpr bool LOG = KIND == LOG_SOFTMAX;
    __shared__ float scratch[WARP];
    dx += row_index() * cols;
    dy += row_index() * cols;
    y += row_index() * cols;
    Row row(y, cols);
    row.also(dy);
    row.also(dx);

    const storage zero = from_float<storage>(0.0f);
    float sum = 0.0f;
    Pack py[HELD], pdy[HELD];
    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            py[i] = row.load(y, j, zero);
            pdy[i] = row.load(dy, j, zero);
        }
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            if (start + i * blockDim.x >= row.packs) break;
            float d[PACK], v[PACK];
            to_floats(pdy[i], d);
            to_floats(py[i], v);
#pragma unroll
            for (int k = 0; k < PACK; ++k) sum += LOG ? d[k] : d[k] * v[k];
        }
    }
    sum = row_sum(sum, scratch);

    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            if (!once(row)) {
                py[i] = row.load(y, j, zero);
                pdy[i] = row.load(dy, j, zero);
            }
            float d[PACK], v[PACK];
            to_floats(pdy[i], d);
            to_floats(py[i], v);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                if (LOG) v[k] = d[k] - fast_exp(v[k]) * sum;
                else v[k] *= KIND == SOFTMIN ? sum - d[k] : d[k] - sum;
            }
            row.store(dx, j, from_floats(v));
        }
    }
}

// All: (rows, cols). y may be x, dx may be dy.
extern "C" __global__ void __launch_bounds__(512) softmax(storage* y, const storage* x, offset rows, int cols) {
    forward<SOFTMAX>(y, x, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512) log_softmax(storage* y, const storage* x, offset rows, int cols) {
    forward<LOG_SOFTMAX>(y, x, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512) softmax_backward(
    storage* dx, const storage* dy, const storage* y, offset rows, int cols
) {
    backward<SOFTMAX>(dx, dy, y, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512) log_softmax_backward(
    storage* dx, const storage* dy, const storage* y, offset rows, int cols
) {
    backward<LOG_SOFTMAX>(dx, dy, y, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512) softmin(storage* y, const storage* x, offset rows, int cols) {
    forward<SOFTMIN>(y, x, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512) softmin_backward(
    storage* dx, const storage* dy, const storage* y, offset rows, int cols
) {
    backward<SOFTMIN>(dx, dy, y, rows, cols);
}
