// Rotary positions: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), where x1, x2 are the halves of each head.
//
// Works in place on queries and keys where their projection left them, side by side in one array, so it takes strides.
// In storages an element: 2. The tables (T, half) are shared by samples and heads and stay in cache.
#include "common.cuh"

// PACK floats of a table, 16 bytes at a time where they are aligned.
__device__ __forceinline__ void load_floats(float (&out)[PACK], const float* p, int left, bool aligned) {
    if (aligned && left >= PACK) {
#pragma unroll
        for (int k = 0; k < PACK; k += 4) {
            const float4 v = *reinterpret_cast<const float4*>(p + k);
            out[k] = v.x, out[k + 1] = v.y, out[k + 2] = v.z, out[k + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < PACK; ++k) out[k] = k < left ? p[k] : 0.0f;
}

// y, x: (B, T, H, 2 half) with strides in elements, the last one 1; y may be x. cos, sin: (T, half). A thread takes
// 16 bytes of either half; n: number of such threads, B T H times half / PACK rounded up.
extern "C" __global__ void rotary(
    storage* y, const storage* x, const float* cos, const float* sin, offset y_sample, offset y_row, offset y_head,
    offset x_sample, offset x_row, offset x_head, int T, int H, int half, offset n
) {
    const offset i = (offset)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int packs = (half + PACK - 1) / PACK;
    const offset head = i / packs, row = head / H, sample = row / T;
    const int c = (int)(i % packs) * PACK, left = half - c, h = (int)(head % H), t = (int)(row % T);
    x += sample * x_sample + t * x_row + h * x_head + c;
    y += sample * y_sample + t * y_row + h * y_head + c;
    cos += (offset)t * half + c;
    sin += (offset)t * half + c;

    const bool halves = half % PACK == 0, tables = aligned16(cos) && aligned16(sin);
    Pack p1 = load_pack(x, left, halves && aligned16(x)), p2 = load_pack(x + half, left, halves && aligned16(x));
    float cosines[PACK], sines[PACK];
    load_floats(cosines, cos, left, tables);
    load_floats(sines, sin, left, tables);
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        const float x1 = to_float(p1.at[k]), x2 = to_float(p2.at[k]);
        p1.at[k] = from_float<storage>(x1 * cosines[k] - x2 * sines[k]);
        p2.at[k] = from_float<storage>(x2 * cosines[k] + x1 * sines[k]);
    }
    store_pack(y, p1, left, halves && aligned16(y));
    store_pack(y + half, p2, left, halves && aligned16(y));
}
