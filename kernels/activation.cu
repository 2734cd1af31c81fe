// Activations that are one function of each element: y = f(x), and dx = dy f'(x) from x (ops/activation.py has the sources).
// In storages an element: forward 2, backward 3. The kind is the same for all threads, so one kernel chooses it by a branch
// that costs nothing; each choice is inlined by itself, and computes only the half of its rule that is used.
#include "map.cuh"

enum Kind { THRESHOLD, HARDTANH, HARDSIGMOID, HARDSWISH, SOFTSIGN, ELU, SELU, CELU, SOFTPLUS, LOGSIGMOID, MISH };

struct Rule {
    float y, slope;
};

constexpr float THIRD = 1.0f / 3.0f, SIXTH = 1.0f / 6.0f;

// A NaN stays one in y: conditions are false for it, and the last choice keeps it.
__device__ __forceinline__ float held(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

__device__ __forceinline__ Rule elu(float x, float p) {
    return x <= 0.0f ? Rule{p * expm1f(x), p * expf(x)} : Rule{x, 1.0f};
}

__device__ __forceinline__ Rule celu(float x, float p) {
    const float low = (x > 0.0f ? 0.0f : x) / p;
    return {x > 0.0f ? x : p * expm1f(low), expf(low)};
}

template <int KIND> __device__ __forceinline__ Rule rule(float x, float p, float q) {
    if (KIND == THRESHOLD) return x <= p ? Rule{q, 0.0f} : Rule{x, 1.0f};
    if (KIND == HARDTANH) return {held(x, p, q), x <= p || x >= q ? 0.0f : 1.0f};
    if (KIND == HARDSIGMOID) return {held(x + 3.0f, 0.0f, 6.0f) * SIXTH, x > -3.0f && x < 3.0f ? SIXTH : 0.0f};
    if (KIND == HARDSWISH) {
        const float slope = x <= -3.0f ? 0.0f : x < 3.0f ? x * THIRD + 0.5f : 1.0f;
        return {x * (held(x + 3.0f, 0.0f, 6.0f) * SIXTH), slope};
    }
    if (KIND == SOFTSIGN) {
        const float d = 1.0f + fabsf(x), r = 1.0f / d;  // y is no x r: r is flushed to 0 where |x| is above 2^126
        return {x / d, r * r};
    }
    if (KIND == ELU) return elu(x, p);
    if (KIND == SELU) {
        constexpr float SCALE = 1.05070099f, ALPHA = 1.67326324f;
        const Rule r = elu(x, ALPHA);
        return {SCALE * r.y, SCALE * r.slope};
    }
    if (KIND == CELU) return celu(x, p);
    if (KIND == SOFTPLUS) {
        const float z = p * x;
        if (z > q) return {x, 1.0f};
        return {((z < 0.0f ? 0.0f : z) + log1pf(expf(-fabsf(z)))) / p, logistic(z)};
    }
    if (KIND == LOGSIGMOID) return {(x > 0.0f ? 0.0f : x) - log1pf(expf(-fabsf(x))), logistic(-x)};
    // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), and its derivative is 4 e (1 + e) / (n + 2)^2
    const float t = x > 40.0f ? 40.0f : x, e = expf(t), n = e * (e + 2.0f), d = n + 2.0f;
    return {x * (n / d), n / d + t * (4.0f * (e / d) * ((1.0f + e) / d))};
}

// x becomes y, or, with dy, dx. Where the derivative is 0, dx is 0, though dy be infinite or NaN.
template <int KIND> __device__ __forceinline__ void apply(Pack& x, const Pack* dy, float p, float q) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const Rule r = rule<KIND>(to_float(x.at[k]), p, q);
        const float dx = dy && r.slope != 0.0f ? to_float(dy->at[k]) * r.slope : 0.0f;
        x.at[k] = from_float<storage>(dy ? dx : r.y);
    }
}

__device__ __forceinline__ void apply(Pack& x, const Pack* dy, int kind, float p, float q) {
    switch (kind) {
        case THRESHOLD: return apply<THRESHOLD>(x, dy, p, q);
        case HARDTANH: return apply<HARDTANH>(x, dy, p, q);
        case HARDSIGMOID: return apply<HARDSIGMOID>(x, dy, p, q);
        case HARDSWISH: return apply<HARDSWISH>(x, dy, p, q);
        case SOFTSIGN: return apply<SOFTSIGN>(x, dy, p, q);
        case ELU: return apply<ELU>(x, dy, p, q);
        case SELU: return apply<SELU>(x, dy, p, q);
        case CELU: return apply<CELU>(x, dy, p, q);
        case SOFTPLUS: return apply<SOFTPLUS>(x, dy, p, q);
        case LOGSIGMOID: return apply<LOGSIGMOID>(x, dy, p, q);
        case MISH: return apply<MISH>(x, dy, p, q);
    }
}

extern "C" __global__ void activation(storage* y, const storage* x, int kind, float p, float q, offset n) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack pack = load(x, mine);
    apply(pack, nullptr, kind, p, q);
    store(y, mine, pack);
}

extern "C" __global__ void activation_backward(
    storage* dx, const storage* dy, const storage* x, int kind, float p, float q, offset n
) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack pack = load(x, mine);
    const Pack d = load(dy, mine);
    apply(pack, &d, kind, p, q);
    store(dx, mine, pack);
}
