// The elementwise update rules beside Adam and SGD: one pass over a stretch of flat memory with clipping, decay, the rule's
// state, the step, and, if asked for, the parameter's copy in storage type and the cleared gradient.
//
// Bytes a parameter: 12 (p read and written, g read) and 8 for each array of the rule's state: 20 for lion, adagrad and
// asgd, 28 for those with two, 36 for amsgrad and centered rmsprop with momentum. Nothing but memory binds, as in adam.cu.
// One kernel for all rules, each compiled as a branch of its own that all threads take or none: the rule's arithmetic hides
// behind the loads, and two dozen entry points with the same twenty arguments would hide what differs.
#include "update_control.cuh"

enum { AMSGRAD, NADAM, RADAM, ADAMAX, LION, LAMB, RMSPROP, ADAGRAD, ADADELTA, RPROP, ASGD, MUON };  // Rule.number

// What one thread moves. w, and m of rmsprop, are null where the rule goes without.
template <typename G> struct Stretch {
    float *p, *m, *v, *w;
    storage* copy;
    G* g;
    bool aligned;
};

struct Numbers {
    Control c;
    float a, b, d, e, f, h;  // the rule's own, see its `scalars`
    float rate, weight_decay, l1;
    bool decoupled, momentum, centered;
};

struct Element {
    float p, m, v, w;
};

__device__ __forceinline__ float sign(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }

// m and v of Adam and its kin; a, b: beta1, 1 - beta1; d, e: beta2, 1 - beta2.
__device__ __forceinline__ void moments(Element& x, float g, const Numbers& n) {
    x.m = n.a * x.m + n.b * g;
    x.v = n.d * x.v + n.e * g * g;
}

// One parameter along its gradient g; see ops/adam_rules.py and ops/gradient_rules.py. f: epsilon of Adam's kin.
template <int RULE> __device__ __forceinline__ void advance(Element& x, float g, const Numbers& n) {
    const float first = n.c.correction1, root = sqrtf(n.c.correction2);
    if constexpr (RULE == AMSGRAD) {
        moments(x, g, n);
        x.w = fmaxf(x.w, x.v);
        x.p -= n.rate * root / first * (x.m / (sqrtf(x.w) + n.f * root));
    } else if constexpr (RULE == NADAM) {
        moments(x, g, n);
        x.p -= n.rate * root * ((g / first + n.c.extra * x.m) / (sqrtf(x.v) + n.f * root));
    } else if constexpr (RULE == RADAM) {
        moments(x, g, n);
        x.p -= n.rate / first * x.m * (n.c.extra > 0.0f ? n.c.extra * root / (sqrtf(x.v) + n.f) : 1.0f);
    } else if constexpr (RULE == ADAMAX) {
        x.m = n.a * x.m + n.b * g;
        x.v = fmaxf(n.d * x.v, fabsf(g) + n.f);
        x.p -= n.rate / first * (x.m / x.v);
    } else if constexpr (RULE == LION) {
        x.p -= n.rate * sign(n.a * x.m + n.b * g);
        x.m = n.d * x.m + n.e * g;
    } else if constexpr (RULE == LAMB) {
        moments(x, g, n);
        x.w = root / first * (x.m / (sqrtf(x.v) + n.f * root)) + n.h * x.p;
    } else if constexpr (RULE == RMSPROP) {  // alpha, 1 - alpha, eps, momentum
        x.v = n.a * x.v + n.b * g * g;
        x.w = n.a * x.w + n.b * g;
        const float size = n.centered ? fmaxf(x.v - x.w * x.w, 0.0f) : x.v;
        const float step = g / (sqrtf(size) + n.d);
        x.m = n.e * x.m + step;
        x.p -= n.rate * (n.momentum ? x.m : step);
    } else if constexpr (RULE == ADAGRAD) {  // lr_decay, eps
        x.v += g * g;
        x.p -= n.rate / (1.0f + (n.c.t - 1.0f) * n.a) * (g / (sqrtf(x.v) + n.b));
    } else if constexpr (RULE == ADADELTA) {  // rho, 1 - rho, eps
        x.v = n.a * x.v + n.b * g * g;
        const float step = sqrtf((x.m + n.d) / (x.v + n.d)) * g;
        x.m = n.a * x.m + n.b * step * step;
        x.p -= n.rate * step;
    } else if constexpr (RULE == RPROP) {  // down, up, least, most
        const float turned = sign(g) * sign(x.m);
        x.v = fminf(fmaxf(x.v * (turned > 0.0f ? n.b : turned < 0.0f ? n.a : 1.0f), n.d), n.e);
        x.m = turned < 0.0f ? 0.0f : g;
        x.p -= x.v * sign(x.m);
    } else if constexpr (RULE == ASGD) {  // lambd, alpha, t0
        const float eta = n.rate / powf(1.0f + n.a * n.rate * (n.c.t - 1.0f), n.b), later = n.c.t - 1.0f - n.d;
        x.p = x.p * (1.0f - n.a * eta) - eta * g;
        x.m = later > 1.0f ? x.m + (x.p - x.m) / later : x.p;
    } else {  // muon: momentum, 1 - momentum, nesterov
        x.m = n.a * x.m + n.b * g;
        x.w = n.d != 0.0f ? n.a * x.m + n.b * g : x.m;
    }
}

template <int RULE, typename G>
__device__ __forceinline__ void run(const Stretch<G>& s, const Numbers& n, offset i, int left) {
    constexpr bool HAS_M = RULE != ADAGRAD, HAS_V = RULE != LION && RULE != ASGD && RULE != MUON;
    constexpr bool HAS_W = RULE == AMSGRAD || RULE == LAMB || RULE == MUON, MOVES = RULE != LAMB && RULE != MUON;
    const bool m = HAS_M && (RULE != RMSPROP || n.momentum), w = HAS_W || (RULE == RMSPROP && n.centered);
    Floats pp = load_floats(s.p + i, left, s.aligned), pm{}, pv{}, pw{};
    const Floats pg = load_gradient(s.g + i, left, s.aligned);
    if (m) pm = load_floats(s.m + i, left, s.aligned);
    if (HAS_V) pv = load_floats(s.v + i, left, s.aligned);
    if (w && RULE != LAMB && RULE != MUON) pw = load_floats(s.w + i, left, s.aligned);
    const float keep = MOVES && n.decoupled ? 1.0f - n.rate * n.weight_decay : 1.0f, decay = n.decoupled ? 0.0f : n.weight_decay;
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        Element x{keep * pp.at[k], pm.at[k], pv.at[k], pw.at[k]};
        advance<RULE>(x, gradient(pg.at[k], pp.at[k], n.c, decay, n.l1), n);
        pp.at[k] = x.p, pm.at[k] = x.m, pv.at[k] = x.v, pw.at[k] = x.w;
    }
    if (m) store_floats(s.m + i, pm, left, s.aligned);
    if (HAS_V) store_floats(s.v + i, pv, left, s.aligned);
    if (w) store_floats(s.w + i, pw, left, s.aligned);
    if (MOVES) store_floats(s.p + i, pp, left, s.aligned);
    if (MOVES && s.copy) store_copy(s.copy + i, pp, left, s.aligned);
}

template <typename G>
__device__ __forceinline__ void update(Stretch<G> s, const Numbers& n, int rule, int clear, offset i, int left) {
    s.aligned = aligned16(s.p) && aligned16(s.m) && aligned16(s.v) && aligned16(s.w) && aligned16(s.g) && aligned16(s.copy);
    if (n.c.apply != 0.0f) {
        switch (rule) {
            case AMSGRAD: run<AMSGRAD>(s, n, i, left); break;
            case NADAM: run<NADAM>(s, n, i, left); break;
            case RADAM: run<RADAM>(s, n, i, left); break;
            case ADAMAX: run<ADAMAX>(s, n, i, left); break;
            case LION: run<LION>(s, n, i, left); break;
            case LAMB: run<LAMB>(s, n, i, left); break;
            case RMSPROP: run<RMSPROP>(s, n, i, left); break;
            case ADAGRAD: run<ADAGRAD>(s, n, i, left); break;
            case ADADELTA: run<ADADELTA>(s, n, i, left); break;
            case RPROP: run<RPROP>(s, n, i, left); break;
            case ASGD: run<ASGD>(s, n, i, left); break;
            case MUON: run<MUON>(s, n, i, left); break;
        }
    }
    if (clear) clear_gradient(s.g + i, left, s.aligned);  // of a skipped step too: what is not finite must not stay
}

template <typename G> __device__ __forceinline__ Numbers numbers(const Control& c, const Settings& s, const Stretch<G>& arrays) {
    return {
        c, s.a, s.b, s.d, s.e, s.f, s.h, c.rate * s.lr_scale, s.weight_decay, s.l1,
        s.decoupled, arrays.m != nullptr, arrays.w != nullptr
    };
}

template <typename G>
__device__ __forceinline__ void stretch(
    const Stretch<G>& arrays, const float* control, const Settings& s, int rule, int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    update(arrays, numbers(load_control(control), s, arrays), rule, clear, i, size - i < PACK ? (int)(size - i) : PACK);
}

template <typename G>
__device__ __forceinline__ void model(
    const Stretch<G>& arrays, const float* control, const float* settings, const long long* places, int count, int rule,
    int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    const Spot at = find_spot(places, count, settings, control, i);
    if (at.left) update(arrays, numbers(at.c, at.s, arrays), rule, clear, i, at.left);
}

// p, g: (size,), at any alignment. m, v, w: the rule's state, (size,) or null. copy: (size,) or null. control: see
// update_control.cu. a ... h: the rule's numbers.
extern "C" __global__ void update_rules(
    float* p, float* m, float* v, float* w, storage* copy, storage* g, const float* control,
    float a, float b, float d, float e, float f, float h, float lr_scale, float weight_decay, float l1, int decoupled,
    int rule, int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, decoupled != 0, a, b, d, e, f, h};
    stretch(Stretch<storage>{p, m, v, w, copy, g, false}, control, s, rule, clear, size);
}

// The same with a float gradient beside a copy in storage type.
extern "C" __global__ void update_rules_float_gradient(
    float* p, float* m, float* v, float* w, storage* copy, float* g, const float* control,
    float a, float b, float d, float e, float f, float h, float lr_scale, float weight_decay, float l1, int decoupled,
    int rule, int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, decoupled != 0, a, b, d, e, f, h};
    stretch(Stretch<float>{p, m, v, w, copy, g, false}, control, s, rule, clear, size);
}

// A whole model in one launch. control: (rows, 8). settings: (rows, 12), places: (count, 3), see find_spot.
extern "C" __global__ void update_rules_model(
    float* p, float* m, float* v, float* w, storage* copy, storage* g, const float* control, const float* settings,
    const long long* places, int count, int rule, int clear, offset size
) {
    model(Stretch<storage>{p, m, v, w, copy, g, false}, control, settings, places, count, rule, clear, size);
}

extern "C" __global__ void update_rules_model_float_gradient(
    float* p, float* m, float* v, float* w, storage* copy, float* g, const float* control, const float* settings,
    const long long* places, int count, int rule, int clear, offset size
) {
    model(Stretch<float>{p, m, v, w, copy, g, false}, control, settings, places, count, rule, clear, size);
}
