// y = cap tanh(x / cap), and its backward pass from x. y and dy are float whatever the storage: they are what a loss reads
// and writes next, and are rounded once, at the end. Bytes an element: 4 + itemsize forward, 4 + 2 itemsize backward.
#include "map.cuh"

extern "C" __global__ void softcap(float* y, const storage* x, float cap, offset n) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    const Pack p = load(x, mine);
#pragma unroll
    for (int k = 0; k < PACK; ++k)
        if (k < mine.count) y[mine.first + k] = cap * tanhf(to_float(p.at[k]) / cap);
}

// dx may be x. Where dy is 0, dx is 0 even if x is NaN.
extern "C" __global__ void softcap_backward(storage* dx, const float* dy, const storage* x, float cap, offset n) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack p = load(x, mine);
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const float d = k < mine.count ? dy[mine.first + k] : 0.0f, t = tanhf(to_float(p.at[k]) / cap);
        p.at[k] = from_float<storage>(d == 0.0f ? 0.0f : d * (1.0f - t * t));
    }
    store(dx, mine, p);
}
