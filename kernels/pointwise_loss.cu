// Losses that are sums over elements (ops/pointwise_loss.py has the formulas): the loss's partial sums, or each element's
// loss, and dx in one pass. In storages an element: 3. The kind is the same for all threads, so one kernel chooses it by a
// branch that costs nothing, and each choice is inlined by itself.
#include "map.cuh"

enum Kind { SQUARED, ABSOLUTE, HUBER, SMOOTH, KL, KL_LOG, BCE, BCE_LOGITS, HINGE };

struct Point {
    float loss, slope;
    bool bad;  // a target, or a probability, that means nothing
};

__device__ __forceinline__ float sign(float d) { return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; }  // NaN stays
__device__ __forceinline__ float at_least(float low, float x) { return x < low ? low : x; }        // NaN stays
__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool outside(float x) { return x < 0.0f || x > 1.0f; }

// t (log t - x), and 0 where t = 0, even at x = -inf.
__device__ __forceinline__ Point divergence(float x, float log_t, float t) {
    if (is_nan(x)) return {x, x, false};
    return {t == 0.0f ? 0.0f : t * (log_t - x), -t, false};
}

template <int KIND> __device__ __forceinline__ Point point(float x, float t, float p, float q) {
    const float d = x - t;
    if (KIND == SQUARED) return {d * d, 2.0f * d, false};
    if (KIND == ABSOLUTE) return {fabsf(d), sign(d), false};
    if (KIND == HUBER || KIND == SMOOTH) {
        const float held = d < -p ? -p : d > p ? p : d, by = KIND == SMOOTH ? 1.0f / p : 1.0f;  // NaN stays
        return {by * held * (d - 0.5f * held), by * held, false};
    }
    if (KIND == KL) return divergence(x, logf(t), t);
    if (KIND == KL_LOG) return divergence(x, t, expf(t));
    if (KIND == BCE) {
        const float log_x = at_least(-100.0f, logf(x)), log_rest = at_least(-100.0f, log1pf(-x));
        return {-t * log_x - (1.0f - t) * log_rest, d / at_least(1e-12f, x * (1.0f - x)), outside(x) || outside(t)};
    }
    if (KIND == BCE_LOGITS) {
        const float positive = q * t, both = 1.0f - t + positive, e = expf(-fabsf(x));
        const float linear = x >= 0.0f ? 1.0f - t : positive, curved = both * e / (1.0f + e);
        const float loss = (linear == 0.0f ? 0.0f : linear * fabsf(x)) + both * log1pf(e);
        return {loss, x >= 0.0f ? linear - curved : curved - linear, outside(t)};
    }
    if (is_nan(x) || is_nan(t)) return {x + t, x + t, false};
    if (t == 1.0f) return {x, 1.0f, false};
    const float gap = p - x;
    return {gap < 0.0f ? 0.0f : gap, gap < 0.0f ? 0.0f : -1.0f, t != -1.0f};
}

struct Loss {
    storage* dx;
    float* losses;
    long long* errors;
    const storage *x, *target;
    const float *weight, *pos_weight;
    float parameter, factor, scale;
    offset weights, pos_weights, n;
};

// Returns the thread's part of the sum.
template <int KIND> __device__ __forceinline__ float run(const Loss& a) {
    constexpr int CODE = KIND == HINGE ? BAD_SIGN : BAD_PROBABILITY;
    float sum = 0.0f;
    for (Part mine = my_part(a.n); mine.count; mine = next_part(mine, a.n)) {
        Pack p = load(a.x, mine);
        const Pack q = load(a.target, mine);
        offset w = a.weight ? mine.first % a.weights : 0, pos = a.pos_weight ? mine.first % a.pos_weights : 0;
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            if (k >= mine.count) break;
            const float positive = KIND == BCE_LOGITS && a.pos_weight ? a.pos_weight[pos] : 1.0f;
            Point f = point<KIND>(to_float(p.at[k]), to_float(q.at[k]), a.parameter, positive);
            if (KIND >= BCE && f.bad) {
                report_error(a.errors, CODE, mine.first + k, 0, 0);
                f.loss = __int_as_float(0x7fffffff);
                f.slope = 0.0f;
            }
            const float by = a.weight ? a.factor * a.weight[w] : a.factor;
            if (a.losses) a.losses[mine.first + k] = by * f.loss;
            sum += by * f.loss;
            p.at[k] = from_float<storage>(by * a.scale * f.slope);
            if (++w == a.weights) w = 0;
            if (++pos == a.pos_weights) pos = 0;
        }
        store(a.dx, mine, p);
    }
    return sum;
}

// dx = scale factor w f'(x, target); losses = factor w f(x, target), or null; partial[b] = the sum of those over block b.
// weight, pos_weight: of element i the number i % weights, i % pos_weights; null for 1. scale: one number, or null for 1.
// errors: the device's error note.
extern "C" __global__ void pointwise_loss(
    storage* dx, float* losses, float* partial, long long* errors, const storage* x, const storage* target,
    const float* weight, const float* pos_weight, const float* scale,
    int kind, float parameter, float factor, offset weights, offset pos_weights, offset n
) {
    if ((offset)blockIdx.x * blockDim.x * PACK >= n) return;
    __shared__ float scratch[WARP];
    const Loss a = {dx, losses, errors, x, target, weight, pos_weight, parameter, factor, scale ? *scale : 1.0f,
                    weights, pos_weights, n};
    float sum = 0.0f;
    switch (kind) {
        case SQUARED: sum = run<SQUARED>(a); break;
        case ABSOLUTE: sum = run<ABSOLUTE>(a); break;
        case HUBER: sum = run<HUBER>(a); break;
        case SMOOTH: sum = run<SMOOTH>(a); break;
        case KL: sum = run<KL>(a); break;
        case KL_LOG: sum = run<KL_LOG>(a); break;
        case BCE: sum = run<BCE>(a); break;
        case BCE_LOGITS: sum = run<BCE_LOGITS>(a); break;
        case HINGE: sum = run<HINGE>(a); break;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
