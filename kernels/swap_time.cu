// Between (B, T, C) and (T, B, C), with zeros at padding. In storages an element: 2.
//
// Bound by memory: a thread takes 16 bytes, and the threads of a warp lie beside each other in a row on both sides.
#include "common.cuh"

// y (outer, inner, cols) from x (inner, outer, cols), whose strides are in elements, the last one 1. The batch is inner if
// batch_inner, else outer, and time the other one. lengths: of the batch, or null for no padding. n: rows times the packs of
// a row, PACK elements each.
extern "C" __global__ void swap_time(
    storage* y, const storage* x, const int* lengths, offset x_inner, offset x_outer, int inner, int cols,
    int batch_inner, offset n
) {
    const offset i = (offset)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int packs = (cols + PACK - 1) / PACK;
    const offset row = i / packs;
    const int at_outer = (int)(row / inner), at_inner = (int)(row % inner), c = (int)(i % packs) * PACK;
    x += at_inner * x_inner + at_outer * x_outer + c;
    y += row * cols + c;
    const int sample = batch_inner ? at_inner : at_outer, t = batch_inner ? at_outer : at_inner;
    Pack p = {};
    if (!lengths || t < lengths[sample]) p = load_pack(x, cols - c, aligned16(x));
    store_pack(y, p, cols - c, aligned16(y));
}
