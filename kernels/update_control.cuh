// The control array, which update_control.cu writes and every update kernel reads; `Control` of ops/update_control.py.
#pragma once

#include "common.cuh"

struct Control {
    float apply, scale, limit, rate, correction1, correction2, t, extra;
};

__device__ __forceinline__ Control load_control(const float* control) {
    return {control[0], control[1], control[2], control[3], control[4], control[5], control[6], control[7]};
}

// Settings of a stretch of parameters that do not change from step to step. a ... h: the rule's own numbers.
struct Settings {
    float lr_scale, weight_decay, l1;
    bool decoupled;
    float a, b, d, e, f, h;
};

// Where a thread is in flat memory: how many elements from its first one on share control and settings; 0 for none.
struct Spot {
    Control c;
    Settings s;
    int left;
};

constexpr int SETTINGS = 12;  // floats of a row; `Table` of ops/update.py

// places: (count, 3), the first and the last element + 1 of each stretch, in order, and the row of its settings, whose
// first number is the row of its control. So one launch takes a whole model, whatever its groups. A binary search over
// what lies in the nearest cache: the loads of parameters and moments, from far away, are what a thread waits for.
__device__ __forceinline__ Spot find_spot(
    const long long* places, int count, const float* settings, const float* control, offset i
) {
    int low = 0;
    for (int high = count; high - low > 1;) {
        const int middle = (low + high) / 2;
        if (places[3 * middle] <= i) low = middle;
        else high = middle;
    }
    const offset start = places[3 * low], stop = places[3 * low + 1];
    const float* row = settings + SETTINGS * places[3 * low + 2];
    const Settings s{row[1], row[2], row[3], row[4] != 0.0f, row[5], row[6], row[7], row[8], row[9], row[10]};
    const int left = i < start || i >= stop ? 0 : stop - i < PACK ? (int)(stop - i) : PACK;
    return {load_control(control + 8 * (int)row[0]), s, left};
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
