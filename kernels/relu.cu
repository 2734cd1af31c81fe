// ReLU, leaky ReLU and PReLU. In storages an element: forward 2, backward 3.
#include "columns.cuh"
#include "map.cuh"

extern "C" __global__ void relu(storage* y, const storage* x, offset n) {
    map(y, x, n, [](float x) { return x <= 0.0f ? 0.0f : x; });  // NaN stays
}

extern "C" __global__ void relu_backward(storage* dx, const storage* dy, const storage* y, offset n) {
    map(dx, dy, y, n, [](float dy, float y) { return y > 0.0f ? dy : 0.0f; });
}

extern "C" __global__ void leaky_relu(storage* y, const storage* x, float slope, offset n) {
    map(y, x, n, [=](float x) { return x > 0.0f ? x : x * slope; });
}

extern "C" __global__ void leaky_relu_backward(storage* dx, const storage* dy, const storage* x, float slope, offset n) {
    map(dx, dy, x, n, [=](float dy, float x) { return x > 0.0f ? dy : dy * slope; });
}

// weight: (cols,), cols being 1 for one slope.
extern "C" __global__ void prelu(storage* y, const storage* x, const storage* weight, int cols, offset n) {
    map_rows(y, x, weight, cols, n, [](float x, float slope) { return x > 0.0f ? x : x * slope; });
}

// dx, and the sums of dy x over the x <= 0 of each column: partial (gridDim.y, cols). slopes: cols, or 1 for one slope.
extern "C" __global__ void prelu_backward(
    storage* dx, float* partial, const storage* dy, const storage* x, const storage* weight, int slopes, offset rows,
    int cols
) {
    if ((offset)blockIdx.x * TILE_COLS >= cols) return;
    const bool aligned = cols % PACK == 0 && aligned16(x) && aligned16(dy) && aligned16(dx);
    sum_columns(partial, rows, cols, [=](offset at, int left, float* sum) {
        Pack px = load_pack(x + at, left, aligned);
        const Pack pdy = load_pack(dy + at, left, aligned), slope = load_repeated(weight, {at, left}, slopes);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float value = to_float(px.at[k]), d = to_float(pdy.at[k]);
            if (!(value > 0.0f)) sum[k] += d * value;
            px.at[k] = from_float<storage>(value > 0.0f ? d : d * to_float(slope.at[k]));
        }
        store_pack(dx + at, px, left, aligned);
    });
}
