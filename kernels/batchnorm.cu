// Batch normalisation of (rows, cols): statistics of the columns, normalisation, backward, and the running statistics.
//
// Statistics in one pass over x: each thread goes down its columns by Welford's recurrence, and the threads' means and sums
// of squared deviations are joined pair by pair in a fixed tree (Chan, Golub and LeVeque, 1979), over a block, then over the
// blocks: no atomics, the same bits every time. E[x^2] - E[x]^2 would cancel where a mean is large; so would the recurrence,
// a little, so it runs on x minus the column's first value. In storages an element: statistics 1, normalisation 2, backward
// 2 for the sums and 3 for dx.
//
// A block is (packs of columns, rows), blockDim.x being at most a warp and as few as there are packs of 16 bytes in a row: three
// channels keep all 256 threads busy, too. Each thread stays in its columns and keeps what belongs to them in registers. The
// grid is (tiles of columns, stretches of rows).
#include "common.cuh"

constexpr int TILE_THREADS = 256;  // of a block, blockDim.x blockDim.y; blockDim.y is a power of two

// Where a thread works: columns col .. col + left - 1, none if left <= 0, and rows row, row + blockDim.y, ... below stop.
struct Place {
    offset row, stop;
    int col, left;

    __device__ Place(offset rows, int cols) {
        const offset stretch = (rows + gridDim.y - 1) / gridDim.y;
        row = blockIdx.y * stretch + threadIdx.y;
        stop = min(rows, (blockIdx.y + 1) * stretch);
        col = (blockIdx.x * blockDim.x + threadIdx.x) * PACK;
        left = cols - col;
        if (left <= 0) stop = 0;
    }
};

__device__ __forceinline__ void load_columns(float* out, const float* v, const Place& at) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) out[k] = k < at.left ? v[at.col + k] : 0.0f;
}

// The same of gains or biases, which may be null.
__device__ __forceinline__ void load_columns(float* out, const storage* v, const Place& at, float otherwise) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) out[k] = v && k < at.left ? to_float(v[at.col + k]) : otherwise;
}

// mine[k] of all threads of a column of the block, joined in a fixed tree; the threads of its first row get it.
template <int N, typename T>
__device__ __forceinline__ void join(T (&mine)[N], T* scratch) {
    const int width = blockDim.x;
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        const bool gives = threadIdx.y >= half && threadIdx.y < 2 * half;
        const int at = (threadIdx.y % half * N) * width + threadIdx.x;
        if (gives)
#pragma unroll
            for (int k = 0; k < N; ++k) scratch[at + k * width] = mine[k];
        __syncthreads();
        if (threadIdx.y < half)
#pragma unroll
            for (int k = 0; k < N; ++k) mine[k].add(scratch[at + k * width]);
        __syncthreads();  // scratch is written again
    }
}

// ---- statistics

// Of `count` numbers: their mean, and the sum of the squared deviations from it.
struct Moments {
    float count, mean, squares;

    __device__ void add(float x, float share) {  // share: 1 / the new count
        const float before = x - mean;
        mean += before * share;
        squares += before * (x - mean);
    }
    __device__ void add(const Moments& other) {
        if (other.count == 0.0f) return;
        const float total = count + other.count, difference = other.mean - mean, share = other.count / total;
        mean += difference * share;
        squares += other.squares + difference * difference * count * share;
        count = total;
    }
};

// partial: (gridDim.y, 3, cols): count, mean less the column's first value, and squares of each stretch.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) batchnorm_statistics(
    float* partial, const storage* x, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= cols) return;
    __shared__ Moments scratch[TILE_THREADS / 2 * PACK];
    const Place at(rows, cols);
    const bool aligned = cols % PACK == 0 && aligned16(x);
    float first[PACK];
    load_columns(first, x, at, 0.0f);
    Moments mine[PACK] = {};
    int count = 0;
    for (offset row = at.row; row < at.stop; row += blockDim.y) {
        const Pack p = load_pack(x + row * cols + at.col, at.left, aligned);
        const float share = 1.0f / ++count;
#pragma unroll
        for (int k = 0; k < PACK; ++k) mine[k].add(to_float(p.at[k]) - first[k], share);
    }
#pragma unroll
    for (int k = 0; k < PACK; ++k) mine[k].count = count;
    join(mine, scratch);
    if (threadIdx.y) return;
    partial += (offset)blockIdx.y * 3 * cols + at.col;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        if (k >= at.left) break;
        partial[k] = mine[k].count;
        partial[cols + k] = mine[k].mean;
        partial[2 * (offset)cols + k] = mine[k].squares;
    }
}

// mean, var: (cols,), var divided by `rows`. A block of (32, 32) threads takes 32 columns.
extern "C" __global__ void __launch_bounds__(1024) batchnorm_join(
    float* mean, float* var, const float* partial, const storage* x, offset rows, int stretches, int cols
) {
    if ((offset)blockIdx.x * WARP >= cols) return;
    __shared__ Moments scratch[WARP / 2 * WARP];
    const int col = blockIdx.x * WARP + threadIdx.x;
    Moments mine[1] = {};
    if (col < cols)
        for (int i = threadIdx.y; i < stretches; i += blockDim.y) {
            const float* from = partial + (offset)i * 3 * cols + col;
            mine[0].add(Moments{from[0], from[cols], from[2 * (offset)cols]});
        }
    join(mine, scratch);
    if (threadIdx.y || col >= cols) return;
    mean[col] = to_float(x[col]) + mine[0].mean;
    var[col] = mine[0].squares / rows;
}

// ---- normalisation

// y = (x - mean) / sqrt(var + eps) weight + bias. y, x: (rows, cols). weight, bias: (cols,) or null.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) batchnorm(
    storage* y, const storage* x, const float* mean, const float* var, const storage* weight, const storage* bias,
    float eps, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= cols) return;
    const Place at(rows, cols);
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(y);
    float m[PACK], factor[PACK], w[PACK], b[PACK];
    load_columns(m, mean, at);
    load_columns(factor, var, at);
    load_columns(w, weight, at, 1.0f);
    load_columns(b, bias, at, 0.0f);
#pragma unroll
    for (int k = 0; k < PACK; ++k) factor[k] = w[k] / sqrtf(factor[k] + eps);
    for (offset row = at.row; row < at.stop; row += blockDim.y) {
        const offset start = row * cols + at.col;
        Pack p = load_pack(x + start, at.left, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>((to_float(p.at[k]) - m[k]) * factor[k] + b[k]);
        store_pack(y + start, p, at.left, aligned);
    }
}

// ---- backward

struct Sums {
    float dy, dy_xhat;

    __device__ void add(const Sums& other) {
        dy += other.dy;
        dy_xhat += other.dy_xhat;
    }
};

// partial: (gridDim.y, 2, cols): the sums of dy and of dy xhat over each stretch.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) batchnorm_sums(
    float* partial, const storage* dy, const storage* x, const float* mean, const float* var, float eps, offset rows,
    int cols
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= cols) return;
    __shared__ Sums scratch[TILE_THREADS / 2 * PACK];
    const Place at(rows, cols);
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(dy);
    float m[PACK], v[PACK];
    load_columns(m, mean, at);
    load_columns(v, var, at);
    Sums mine[PACK] = {};
    for (offset row = at.row; row < at.stop; row += blockDim.y) {
        const offset start = row * cols + at.col;
        const Pack px = load_pack(x + start, at.left, aligned), pdy = load_pack(dy + start, at.left, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float d = to_float(pdy.at[k]);
            mine[k].add(Sums{d, d * (to_float(px.at[k]) - m[k])});
        }
    }
    join(mine, scratch);
    if (threadIdx.y) return;
    partial += (offset)blockIdx.y * 2 * cols + at.col;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        if (k >= at.left) break;
        partial[k] = mine[k].dy;
        partial[cols + k] = mine[k].dy_xhat / sqrtf(v[k] + eps);
    }
}

// dx = weight rstd (dy - sum(dy) / rows - xhat sum(dy xhat) / rows), without the sums if they are null.
// sums: (2, cols), of dy and of dy xhat, or null where mean and var do not depend on x.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) batchnorm_backward(
    storage* dx, const storage* dy, const storage* x, const float* mean, const float* var, const storage* weight,
    const float* sums, float eps, offset rows, int cols
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= cols) return;
    const Place at(rows, cols);
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(dy) && aligned16(dx);
    float m[PACK], factor[PACK], average[PACK] = {}, slope[PACK] = {};
    load_columns(m, mean, at);
    load_columns(factor, var, at);
    if (sums) {
        load_columns(average, sums, at);
        load_columns(slope, sums + cols, at);
    }
    float w[PACK];
    load_columns(w, weight, at, 1.0f);
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const float rstd = 1.0f / sqrtf(factor[k] + eps);
        factor[k] = w[k] * rstd;
        average[k] /= rows;
        slope[k] *= rstd / rows;
    }
    for (offset row = at.row; row < at.stop; row += blockDim.y) {
        const offset start = row * cols + at.col;
        Pack p = load_pack(dy + start, at.left, aligned);
        if (sums) {
            const Pack px = load_pack(x + start, at.left, aligned);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float centred = to_float(px.at[k]) - m[k];
                p.at[k] = from_float<storage>(factor[k] * (to_float(p.at[k]) - average[k] - centred * slope[k]));
            }
        } else {
#pragma unroll
            for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(factor[k] * to_float(p.at[k]));
        }
        store_pack(dx + start, p, at.left, aligned);
    }
}

// ---- running statistics

// running = (1 - momentum) running + momentum new, momentum being 1 / batches if `average`; nothing if control says skip.
// running_mean, running_var: (cols,). mean, var: (samples, cols), of which the average is taken. batches: (1,). control: its
// first element is 0 in a skipped step; or null. unbias: rows / (rows - 1). One block.
extern "C" __global__ void __launch_bounds__(1024) batchnorm_update(
    float* running_mean, float* running_var, long long* batches, const float* mean, const float* var, const float* control,
    float unbias, float momentum, bool average, int samples, int cols
) {
    if (blockIdx.x || (control && control[0] == 0.0f)) return;
    const long long count = batches[0] + 1;
    const float share = average ? 1.0f / count : momentum;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        float m = 0.0f, v = 0.0f;
        for (int i = 0; i < samples; ++i) {
            m += mean[(offset)i * cols + col];
            v += var[(offset)i * cols + col];
        }
        running_mean[col] = (1.0f - share) * running_mean[col] + share * (m / samples);
        running_var[col] = (1.0f - share) * running_var[col] + share * (v / samples * unbias);
    }
    __syncthreads();  // every thread has read the count
    if (threadIdx.x == 0) batches[0] = count;
}
