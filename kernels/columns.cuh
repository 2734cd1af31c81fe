// Sums down the columns of (rows, cols), in a fixed order and without atomics: the same bits every time.
//
// A block takes a tile of columns and a stretch of rows. Its warps go down every eighth row, a lane reads 16 bytes, so a
// warp reads 512 bytes side by side, and sums its columns in registers; the warps' sums are then added in order. The
// sums of the stretches, (stretches, cols), are added by `sum_partials` (sum_rows.cu).
#pragma once

#include "common.cuh"

constexpr int TILE_WARPS = 8;               // a block has TILE_WARPS * WARP threads
constexpr int TILE_COLS = WARP * PACK;

// partial: (gridDim.y, cols). The grid is (tiles of columns, stretches of rows).
// add(at, left, sum): adds to sum[0 .. left - 1] the terms of the elements at, at + 1, ... of one row.
template <typename F>
__device__ __forceinline__ void sum_columns(float* partial, offset rows, int cols, F add) {
    __shared__ float sums[TILE_WARPS][TILE_COLS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int col = blockIdx.x * TILE_COLS + lane * PACK;
    const offset stretch = (rows + gridDim.y - 1) / gridDim.y;
    const offset stop = min(rows, (blockIdx.y + 1) * stretch);

    float sum[PACK] = {};
    if (col < cols)
        for (offset row = blockIdx.y * stretch + warp; row < stop; row += TILE_WARPS)
            add(row * cols + col, min(cols - col, PACK), sum);
#pragma unroll
    for (int k = 0; k < PACK; ++k) sums[warp][k * WARP + lane] = sum[k];  // side by side: no bank conflicts
    __syncthreads();

    partial += (offset)blockIdx.y * cols;
    for (int i = threadIdx.x; i < TILE_COLS; i += TILE_WARPS * WARP) {
        const int out = blockIdx.x * TILE_COLS + (i % WARP) * PACK + i / WARP;
        float total = 0.0f;
        for (int w = 0; w < TILE_WARPS; ++w) total += sums[w][i];
        if (out < cols) partial[out] = total;
    }
}
