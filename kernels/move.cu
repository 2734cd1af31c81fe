// Steps along a direction that was found before (LAMB, Muon), and averages that follow parameters. One pass over a stretch
// of flat memory, bound by it alone: 12 bytes a parameter, 2 more for a 16-bit copy. A thread takes as many floats as a
// Pack has elements, so that the copy is one store of 16 bytes.
#include "update_control.cuh"

// p, u: (size,). copy: (size,) or null. p_total, u_total: one sum of squares each, or null.
extern "C" __global__ void move(
    float* p, storage* copy, const float* u, const float* control, const double* p_total, const double* u_total,
    float lr_scale, float factor, float decay, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size) return;
    const int left = size - i < PACK ? (int)(size - i) : PACK;
    const bool aligned = aligned16(p) && aligned16(u) && aligned16(copy);
    const Control c = load_control(control);
    if (c.apply == 0.0f) return;
    const bool trust = p_total && *p_total > 0.0 && *u_total > 0.0;
    const float rate = c.rate * lr_scale, along = rate * factor * (trust ? (float)sqrt(*p_total / *u_total) : 1.0f);
    Floats pp = load_floats(p + i, left, aligned);
    const Floats pu = load_floats(u + i, left, aligned);
#pragma unroll
    for (int k = 0; k < PACK; ++k) pp.at[k] = (1.0f - rate * decay) * pp.at[k] - along * pu.at[k];
    store_floats(p + i, pp, left, aligned);
    if (copy) store_copy(copy + i, pp, left, aligned);
}

// average, p: (size,). control: null to follow always. rest = 1 - decay, which the host has in double.
extern "C" __global__ void follow(
    float* average, const float* p, const float* control, float decay, float rest, offset size
) {
    const offset i = ((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (i >= size || (control && control[0] == 0.0f)) return;
    const int left = size - i < PACK ? (int)(size - i) : PACK;
    const bool aligned = aligned16(average) && aligned16(p);
    Floats pa = load_floats(average + i, left, aligned);
    const Floats pp = load_floats(p + i, left, aligned);
#pragma unroll
    for (int k = 0; k < PACK; ++k) pa.at[k] = decay * pa.at[k] + rest * pp.at[k];
    store_floats(average + i, pa, left, aligned);
}
