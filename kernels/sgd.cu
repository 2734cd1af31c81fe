// Stochastic gradient descent on a stretch of flat memory in one pass: clipping, decay, momentum, the step, and, if asked
// for, the parameter's copy in storage type and the cleared gradient.
//
// Bytes a parameter: 20 with momentum (p and m read and written, g read), 12 without; 4 more to clear a float gradient, 2
// more for a 16-bit copy. As adam.cu, whose remarks hold here too.
#include "update_control.cuh"

template <typename G>
__device__ __forceinline__ void update(
    float* p, float* m, storage* copy, G* g, const float* control,
    float lr_scale, float momentum, int nesterov, float weight_decay, float l1, int clear, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    const int left = size - i < PACK ? (int)(size - i) : PACK;
    const bool aligned = aligned16(p) && aligned16(m) && aligned16(g) && aligned16(copy);
    const Control c{control[0], control[1], control[2], control[3], control[4], control[5]};
    if (c.apply != 0.0f) {
        Floats pp = load_floats(p + i, left, aligned), pm{};
        const Floats pg = load_gradient(g + i, left, aligned);
        if (m) pm = load_floats(m + i, left, aligned);
        const float rate = c.rate * lr_scale;
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float d = gradient(pg.at[k], pp.at[k], c, weight_decay, l1);
            pm.at[k] = momentum * pm.at[k] + d;
            pp.at[k] -= rate * (!m ? d : nesterov ? d + momentum * pm.at[k] : pm.at[k]);
        }
        store_floats(p + i, pp, left, aligned);
        if (m) store_floats(m + i, pm, left, aligned);
        if (copy) store_copy(copy + i, pp, left, aligned);
    }
    if (clear) clear_gradient(g + i, left, aligned);
}

// p, g: (size,), at any alignment. m, copy: (size,) or null. control: see update_control.cu.
extern "C" __global__ void sgd(
    float* p, float* m, storage* copy, storage* g, const float* control,
    float lr_scale, float momentum, int nesterov, float weight_decay, float l1, int clear, offset size
) {
    update(p, m, copy, g, control, lr_scale, momentum, nesterov, weight_decay, l1, clear, size);
}

// The same with a float gradient beside a copy in storage type.
extern "C" __global__ void sgd_float_gradient(
    float* p, float* m, storage* copy, float* g, const float* control,
    float lr_scale, float momentum, int nesterov, float weight_decay, float l1, int clear, offset size
) {
    update(p, m, copy, g, control, lr_scale, momentum, nesterov, weight_decay, l1, clear, size);
}
