// Stochastic gradient descent on a stretch of flat memory in one pass: clipping, decay, momentum, the step, and, if asked
// for, the parameter's copy in storage type and the cleared gradient.
//
// Bytes a parameter: 20 with momentum (p and m read and written, g read), 12 without; 4 more to clear a float gradient, 2
// more for a 16-bit copy. As adam.cu, whose remarks hold here too.
#include "update_control.cuh"

// numbers: momentum, nesterov, dampening: the first moment is the whole gradient, later ones take 1 - dampening of it.
template <typename G>
__device__ __forceinline__ void update(
    float* p, float* m, storage* copy, G* g, const Control& c, const Settings& s, int clear, offset i, int left
) {
    const bool aligned = aligned16(p) && aligned16(m) && aligned16(g) && aligned16(copy);
    if (c.apply != 0.0f) {
        Floats pp = load_floats(p + i, left, aligned), pm{};
        const Floats pg = load_gradient(g + i, left, aligned);
        if (m) pm = load_floats(m + i, left, aligned);
        const float rate = c.rate * s.lr_scale, momentum = s.a, part = c.t == 1.0f ? 1.0f : 1.0f - s.d;
        const bool nesterov = s.b != 0.0f;
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float d = gradient(pg.at[k], pp.at[k], c, s.weight_decay, s.l1);
            pm.at[k] = momentum * pm.at[k] + part * d;
            pp.at[k] -= rate * (!m ? d : nesterov ? d + momentum * pm.at[k] : pm.at[k]);
        }
        store_floats(p + i, pp, left, aligned);
        if (m) store_floats(m + i, pm, left, aligned);
        if (copy) store_copy(copy + i, pp, left, aligned);
    }
    if (clear) clear_gradient(g + i, left, aligned);
}

template <typename G>
__device__ __forceinline__ void stretch(
    float* p, float* m, storage* copy, G* g, const float* control, const Settings& s, int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    update(p, m, copy, g, load_control(control), s, clear, i, size - i < PACK ? (int)(size - i) : PACK);
}

template <typename G>
__device__ __forceinline__ void model(
    float* p, float* m, storage* copy, G* g, const float* control, const float* settings, const long long* places, int count,
    int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    const Spot at = find_spot(places, count, settings, control, i);
    if (at.left) update(p, m, copy, g, at.c, at.s, clear, i, at.left);
}

// p, g: (size,), at any alignment. m, copy: (size,) or null. control: see update_control.cu.
extern "C" __global__ void sgd(
    float* p, float* m, storage* copy, storage* g, const float* control, float lr_scale, float momentum, int nesterov,
    float weight_decay, float l1, float dampening, int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, false, momentum, (float)nesterov, dampening, 0.0f, 0.0f, 0.0f};
    stretch(p, m, copy, g, control, s, clear, size);
}

// The same with a float gradient beside a copy in storage type.
extern "C" __global__ void sgd_float_gradient(
    float* p, float* m, storage* copy, float* g, const float* control, float lr_scale, float momentum, int nesterov,
    float weight_decay, float l1, float dampening, int clear, offset size
) {
    const Settings s{lr_scale, weight_decay, l1, false, momentum, (float)nesterov, dampening, 0.0f, 0.0f, 0.0f};
    stretch(p, m, copy, g, control, s, clear, size);
}

// A whole model in one launch. control: (rows, 8). settings: (rows, 12), places: (count, 3), see find_spot.
extern "C" __global__ void sgd_model(
    float* p, float* m, storage* copy, storage* g, const float* control, const float* settings, const long long* places,
    int count, int clear, offset size
) {
    model(p, m, copy, g, control, settings, places, count, clear, size);
}

extern "C" __global__ void sgd_model_float_gradient(
    float* p, float* m, storage* copy, float* g, const float* control, const float* settings, const long long* places,
    int count, int clear, offset size
) {
    model(p, m, copy, g, control, settings, places, count, clear, size);
}
