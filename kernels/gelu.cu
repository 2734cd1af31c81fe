// GELU of x + bias: y, dy/dx, or dx = dy dy/dx, in one kernel that writes what it is asked for.
//
// Fused: the bias, the function and its derivative, which come from one exponential. In training the derivative takes the
// place of x, which nobody needs again, and the backward pass is then a product.
// In storages an element: y alone 2, y and derivative 3, dx from dy and x 3.
#include "map.cuh"

// h s(2u), 2u = sqrt(8 / pi) (h + 0.044715 h^3)
struct Tanh {
    __device__ __forceinline__ float operator()(float h, float& derivative) const {
        constexpr float LINEAR = 1.5957691216f, CUBIC = LINEAR * 0.044715f;
        const float n = h < -40.0f ? -40.0f : h > 40.0f ? 40.0f : h;  // beyond, s is 0 or 1 and h^3 may overflow
        const float square = n * n;
        const float s = __fdividef(1.0f, 1.0f + expf(-n * (LINEAR + CUBIC * square)));
        derivative = s + n * s * (1.0f - s) * (LINEAR + 3.0f * CUBIC * square);
        return h * s;
    }
};

// h Phi(h) = max(h, 0) - |h| Phi(-|h|). Only the small tail is approximated, by the polynomial of gpulayers/ops/normal.py,
// so all digits of y are right; and the tail shares its exponential with the density.
struct Exact {
    __device__ __forceinline__ float operator()(float h, float& derivative) const {
        const float a = fabsf(h) > 13.0f ? 13.0f : fabsf(h);  // Phi(-13) = 6e-39; a NaN stays
        const float density = expf(-0.5f * a * a), t = __fdividef(1.0f, 1.0f + 0.35f * a);
        float m = 0.048949391f;
        m = m * t - 0.202148937f;
        m = m * t + 0.240692683f;
        m = m * t - 0.0170714018f;
        m = m * t + 0.155986697f;
        m = m * t + 0.133347602f;
        m = m * t + 0.140271506f;
        m = m * t - 2.73878777e-5f;
        const float tail = density * m, d = tail - 0.3989422804f * density * a;  // Phi(-a), and the derivative at -a
        derivative = h > 0.0f ? 1.0f - d : d;
        return (h > 0.0f ? h : 0.0f) - a * tail;
    }
};

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
        run(y, dx, dy, x, bias, cols, n, Tanh());
    else
        run(y, dx, dy, x, bias, cols, n, Exact());
}
