// Sigmoid, tanh and SiLU. In storages an element: forward 2, SiLU with its derivative 3, backward from dy and y 3.
#include "map.cuh"

// s(x) = 1 / (1 + exp(-x)); exp overflows to inf on the left, and 1 / inf = 0.
__device__ __forceinline__ float logistic(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

extern "C" __global__ void sigmoid(storage* y, const storage* x, offset n) {
    map(y, x, n, [](float x) { return logistic(x); });
}

extern "C" __global__ void sigmoid_backward(storage* dx, const storage* dy, const storage* y, offset n) {
    map(dx, dy, y, n, [](float dy, float y) { return dy * y * (1.0f - y); });
}

extern "C" __global__ void tanh_forward(storage* y, const storage* x, offset n) {
    map(y, x, n, [](float x) { return tanhf(x); });
}

extern "C" __global__ void tanh_backward(storage* dx, const storage* dy, const storage* y, offset n) {
    map(dx, dy, y, n, [](float dy, float y) { return dy * (1.0f - y * y); });
}

extern "C" __global__ void silu(storage* y, const storage* x, offset n) {
    map(y, x, n, [](float x) { return x * logistic(x); });
}

extern "C" __global__ void silu_with_derivative(storage* y, storage* derivative, const storage* x, offset n) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack p = load(x, mine), q;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const float value = to_float(p.at[k]), s = logistic(value);
        p.at[k] = from_float<storage>(value * s);
        q.at[k] = from_float<storage>(s * (1.0f + value * (1.0f - s)));
    }
    store(y, mine, p);
    store(derivative, mine, q);
}
