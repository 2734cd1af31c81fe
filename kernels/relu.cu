// ReLU, leaky ReLU and PReLU. In storages an element: forward 2, backward 3.
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
