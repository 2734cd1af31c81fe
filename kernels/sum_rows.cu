// Column sums, for the gradients of biases and positions, and the second stage of all sums over blocks.
//
// Bytes: x is read once; the partial sums are at most 1 / 64 of its elements.
#include "columns.cuh"

// partial: (gridDim.y, cols) = sums of x (rows, cols) over stretches of rows.
extern "C" __global__ void sum_rows(float* partial, const storage* x, offset rows, int cols) {
    if ((offset)blockIdx.x * TILE_COLS >= cols) return;
    const bool aligned = cols % PACK == 0 && aligned16(x);
    sum_columns(partial, rows, cols, [=](offset at, int left, float* sum) {
        const Pack p = load_pack(x + at, left, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) sum[k] += to_float(p.at[k]);  // beyond the row: 0
    });
}

// total: (cols,) = sums of partial (rows, cols). A block of 1024 threads takes 32 columns: warp w adds the rows w, w + 32,
// ... and the first warp adds the warps' sums.
extern "C" __global__ void __launch_bounds__(1024) sum_partials(float* total, const float* partial, int rows, int cols) {
    if ((offset)blockIdx.x * WARP >= cols) return;
    __shared__ float sums[WARP][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, col = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (col < cols)
        for (int row = warp; row < rows; row += WARP) sum += partial[(offset)row * cols + col];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || col >= cols) return;
    for (int w = 1; w < WARP; ++w) sum += sums[w][lane];
    total[col] = sum;
}
