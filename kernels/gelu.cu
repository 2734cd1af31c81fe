// GELU of x + bias: y, dy/dx, or dx = dy dy/dx, in one kernel that writes what it is asked for.
//
// Fused: the bias, the function and its derivative, which come from one exponential. In training the derivative takes the
// place of x, which nobody needs again, and the backward pass is then a product.
// In storages an element: y alone 2, y and derivative 3, dx from dy and x 3.
#include "gates.cuh"
#include "map.cuh"

template <typename F>
__device__ __forceinline__ void run(
    storage* y, storage* dx, const storage* dy, const storage* x, const storage* bias, int cols, offset n, F f
) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack out = load(x, mine), slope = {};
    const Pack b = load_repeated(bias, mine, cols);
    if (dy) slope = load(dy, mine);
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        float derivative;
        out.at[k] = from_float<storage>(f(to_float(out.at[k]) + to_float(b.at[k]), derivative));
        slope.at[k] = from_float<storage>(dy ? to_float(slope.at[k]) * derivative : derivative);
    }
    if (y) store(y, mine, out);
    if (dx) store(dx, mine, slope);
}

// y: or null. dx: dy times the derivative, or the derivative if dy is null; or null; may be x itself. bias: (cols,) or
// null. tanh: whether the tanh formula is used, the same for all threads.
extern "C" __global__ void gelu(
    storage* y, storage* dx, const storage* dy, const storage* x, const storage* bias, int cols, int tanh, offset n
) {
    if (tanh)
        run(y, dx, dy, x, bias, cols, n, TanhGELU());
    else
        run(y, dx, dy, x, bias, cols, n, ExactGELU());
}
