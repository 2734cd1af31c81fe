// The control array, which update_control.cu writes and every update kernel reads; `Control` of ops/update_control.py.
#pragma once

#include "common.cuh"

struct Control {
    float apply, scale, limit, rate, correction1, correction2, t, extra;
};

__device__ __forceinline__ Control load_control(const float* control) {
    return {control[0], control[1], control[2], control[3], control[4], control[5], control[6], control[7]};
}

// clip(scale g, -limit, limit) + weight_decay p + l1 sign(p)
__device__ __forceinline__ float gradient(float g, float p, const Control& c, float weight_decay, float l1) {
    g = fminf(fmaxf(g * c.scale, -c.limit), c.limit);
    return g + weight_decay * p + l1 * (float)((p > 0.0f) - (p < 0.0f));
}

// As many floats as a Pack has elements, 16 bytes at a time: parameters and moments beside a gradient in storage type.
struct alignas(16) Floats {
    float at[PACK];
};

__device__ __forceinline__ Floats load_floats(const float* p, int left, bool aligned) {
    if (aligned && left >= PACK) return *reinterpret_cast<const Floats*>(p);
    Floats out;
#pragma unroll
    for (int k = 0; k < PACK; ++k) out.at[k] = k < left ? p[k] : 0.0f;
    return out;
}

__device__ __forceinline__ void store_floats(float* p, const Floats& value, int left, bool aligned) {
    if (aligned && left >= PACK) {
        *reinterpret_cast<Floats*>(p) = value;
        return;
    }
#pragma unroll
    for (int k = 0; k < PACK; ++k)
        if (k < left) p[k] = value.at[k];
}

// A gradient comes in storage type, or as float where it is kept in float beside low-precision parameters.
__device__ __forceinline__ Floats load_gradient(const float* g, int left, bool aligned) {
    return load_floats(g, left, aligned);
}

template <typename G> __device__ __forceinline__ Floats load_gradient(const G* g, int left, bool aligned) {
    const Pack pack = load_pack(g, left, aligned);
    Floats out;
#pragma unroll
    for (int k = 0; k < PACK; ++k) out.at[k] = to_float(pack.at[k]);
    return out;
}

__device__ __forceinline__ void clear_gradient(float* g, int left, bool aligned) {
    store_floats(g, Floats{}, left, aligned);
}

template <typename G> __device__ __forceinline__ void clear_gradient(G* g, int left, bool aligned) {
    Pack zeros;
#pragma unroll
    for (int k = 0; k < PACK; ++k) zeros.at[k] = from_float<storage>(0.0f);
    store_pack(g, zeros, left, aligned);
}

__device__ __forceinline__ void store_copy(storage* copy, const Floats& value, int left, bool aligned) {
    Pack pack;
#pragma unroll
    for (int k = 0; k < PACK; ++k) pack.at[k] = from_float<storage>(value.at[k]);
    store_pack(copy, pack, left, aligned);
}
