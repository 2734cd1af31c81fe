// Adam's update of a stretch of flat memory in one pass: clipping, decay, both moments, bias correction, the step, and, if
// asked for, the parameter's copy in storage type and the cleared gradient.
//
// Bytes a parameter: 28 (p, m, v read and written, g read), 4 more to clear a float gradient, 2 more for a 16-bit copy.
// A 16-bit gradient and copy: 28. Nothing but memory binds, so a thread takes 16 bytes of the gradient and leaves: its four
// to seven loads are in flight together, and blocks enough to hide them fit a multiprocessor.
#include "update_control.cuh"

// numbers: beta1, 1 - beta1, beta2, 1 - beta2, eps.
template <typename G>
__device__ __forceinline__ void update(
    float* p, float* m, float* v, storage* copy, G* g, const Control& c, const Settings& s, int clear, offset i, int left
) {
    const bool aligned = aligned16(p) && aligned16(m) && aligned16(v) && aligned16(g) && aligned16(copy);
    if (c.apply != 0.0f) {
        Floats pp = load_floats(p + i, left, aligned), pm = load_floats(m + i, left, aligned);
        Floats pv = load_floats(v + i, left, aligned);
        const Floats pg = load_gradient(g + i, left, aligned);
        // rate (m / c1) / (sqrt(v / c2) + eps) = m / (sqrt(v) + eps sqrt(c2)) (rate sqrt(c2) / c1): two divisions less.
        const float rate = c.rate * s.lr_scale, root = sqrtf(c.correction2);
        const float small = s.f * root, step = rate * root / c.correction1;
        const float keep = s.decoupled ? 1.0f - rate * s.weight_decay : 1.0f, decay = s.decoupled ? 0.0f : s.weight_decay;
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float d = gradient(pg.at[k], pp.at[k], c, decay, s.l1);
            pm.at[k] = s.a * pm.at[k] + s.b * d;
            pv.at[k] = s.d * pv.at[k] + s.e * d * d;
            pp.at[k] = keep * pp.at[k] - step * (pm.at[k] / (sqrtf(pv.at[k]) + small));
        }
        store_floats(p + i, pp, left, aligned);
        store_floats(m + i, pm, left, aligned);
        store_floats(v + i, pv, left, aligned);
        if (copy) store_copy(copy + i, pp, left, aligned);
    }
    if (clear) clear_gradient(g + i, left, aligned);  // of a skipped step too: what is not finite must not stay
}

template <typename G>
__device__ __forceinline__ void stretch(
    float* p, float* m, float* v, storage* copy, G* g, const float* control, const Settings& s, int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    update(p, m, v, copy, g, load_control(control), s, clear, i, size - i < PACK ? (int)(size - i) : PACK);
}

template <typename G>
__device__ __forceinline__ void model(
    float* p, float* m, float* v, storage* copy, G* g, const float* control, const float* settings, const long long* places,
    int count, int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    const Spot at = find_spot(places, count, settings, control, i);
    if (at.left) update(p, m, v, copy, g, at.c, at.s, clear, i, at.left);
}

// p, m, v, g: (size,), at any alignment. copy: (size,) or null. control: see update_control.cu. rest = 1 - beta, which the
// host has in double: 1 - 0.999f is wrong in the fifth digit.
extern "C" __global__ void adam(
    float* p, float* m, float* v, storage* copy, storage* g, const float* control,
    float lr_scale, float beta1, float rest1, float beta2, float rest2, float eps, float weight_decay, int decoupled, float l1,
    int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, decoupled != 0, beta1, rest1, beta2, rest2, eps, 0.0f};
    stretch(p, m, v, copy, g, control, s, clear, size);
}

// The same with a float gradient beside a copy in storage type.
extern "C" __global__ void adam_float_gradient(
    float* p, float* m, float* v, storage* copy, float* g, const float* control,
    float lr_scale, float beta1, float rest1, float beta2, float rest2, float eps, float weight_decay, int decoupled, float l1,
    int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, decoupled != 0, beta1, rest1, beta2, rest2, eps, 0.0f};
    stretch(p, m, v, copy, g, control, s, clear, size);
}

// A whole model in one launch. control: (rows, 8). settings: (rows, 12), places: (count, 3), see find_spot.
extern "C" __global__ void adam_model(
    float* p, float* m, float* v, storage* copy, storage* g, const float* control, const float* settings,
    const long long* places, int count, int clear, offset size
) {
    model(p, m, v, copy, g, control, settings, places, count, clear, size);
}

extern "C" __global__ void adam_model_float_gradient(
    float* p, float* m, float* v, storage* copy, float* g, const float* control, const float* settings,
    const long long* places, int count, int clear, offset size
) {
    model(p, m, v, copy, g, control, settings, places, count, clear, size);
}
