// Sigmoid, tanh and SiLU. In storages an element: forward 2, SiLU with its derivative 3, backward from dy and y 3.
#include "gates.cuh"
#include "map.cuh"

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
        float slope;
        p.at[k] = from_float<storage>(SiLU()(to_float(p.at[k]), slope));
        q.at[k] = from_float<storage>(slope);
    }
    store(y, mine, p);
    store(derivative, mine, q);
}
