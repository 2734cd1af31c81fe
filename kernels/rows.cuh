// Rows of any length from any address on, 16 bytes at a time, and the sum of exponentials over a row.
#pragma once

#include "common.cuh"

constexpr float LOWEST = -3.402823466e38f;  // the lowest float: what a maximum starts from

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// exp(x) by the special-function unit: for x <= 0 its absolute error is below 1e-7.
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }

// The 128 bits of a pack as a queue of elements, for loops that are not unrolled: registers cannot be indexed.
struct Bits {
    uint4 words;
    static constexpr int SIZE = 8 * sizeof(storage);  // bits of an element

    __device__ Bits() : words{0, 0, 0, 0} {}
    __device__ explicit Bits(const Pack& p) : words(*reinterpret_cast<const uint4*>(&p)) {}
    __device__ Pack pack() const { return *reinterpret_cast<const Pack*>(&words); }

    __device__ void push(storage x) {  // in at the top
        unsigned top = 0;
        memcpy(&top, &x, sizeof(x));
        shift(top);
    }
    __device__ storage pop() {  // out at the bottom
        storage x;
        memcpy(&x, &words.x, sizeof(x));
        shift(0);
        return x;
    }
    __device__ void shift(unsigned top) {
        if (SIZE == 32) {
            words = {words.y, words.z, words.w, top};
        } else {
            words.x = words.x >> 16 | words.y << 16;
            words.y = words.y >> 16 | words.z << 16;
            words.z = words.z >> 16 | words.w << 16;
            words.w = words.w >> 16 | top << 16;
        }
    }
};

// A row of odd length may begin anywhere in memory. Its packs lie on 16-byte boundaries: pack j holds the elements
// first(j) to first(j) + PACK - 1, and only the first and the last pack stick out of the row. Those are moved element by
// element. The same pack of several arrays is at the same place only if all are equally far from a boundary: `also`.
struct Row {
    int cols, shift, packs;
    bool vector;

    __device__ Row(const storage* row, int cols) : cols(cols), vector(true) {
        shift = (reinterpret_cast<size_t>(row) & 15) / sizeof(storage);
        packs = (cols + shift + PACK - 1) / PACK;
    }
    __device__ void also(const storage* row) {
        vector = vector && (reinterpret_cast<size_t>(row) & 15) == shift * sizeof(storage);
    }
    __device__ int first(int pack) const { return pack * PACK - shift; }

    // `outside` fills the places that lie before or behind the row.
    __device__ Pack load(const storage* row, int pack, storage outside) const {
        const int i = first(pack);
        if (vector && i >= 0 && i + PACK <= cols) return *reinterpret_cast<const Pack*>(row + i);
        return load_part(row, i, outside);
    }

    __device__ void store(storage* row, int pack, const Pack& value) const {
        const int i = first(pack);
        if (vector && i >= 0 && i + PACK <= cols) {
            *reinterpret_cast<Pack*>(row + i) = value;
            return;
        }
        store_part(row, i, value);
    }

    // An unrolled loop would be faster at the two ends of a row, and cost every thread the registers.
    __device__ Pack load_part(const storage* row, int i, storage outside) const {
        Bits bits = {};
#pragma unroll 1
        for (int k = 0; k < PACK; ++k) bits.push(i + k >= 0 && i + k < cols ? row[i + k] : outside);
        return bits.pack();
    }
    __device__ void store_part(storage* row, int i, const Pack& value) const {
        Bits bits = Bits(value);
#pragma unroll 1
        for (int k = 0; k < PACK; ++k) {
            const storage one = bits.pop();
            if (i + k >= 0 && i + k < cols) row[i + k] = one;
        }
    }
};

// ---- packs of floats, two halves in one instruction; a pack taken apart into 16-bit registers would take twice as many

__device__ __forceinline__ float2 load_two(const float* p) { return {p[0], p[1]}; }
__device__ __forceinline__ float2 load_two(const __half* p) {
    return __half22float2(*reinterpret_cast<const __half2*>(p));
}
__device__ __forceinline__ float2 load_two(const __nv_bfloat16* p) {  // a bfloat16 is the upper half of a float
    const unsigned both = *reinterpret_cast<const unsigned*>(p);
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}

__device__ __forceinline__ void to_floats(const Pack& pack, float* v) {
#pragma unroll
    for (int k = 0; k < PACK; k += 2) {
        const float2 two = load_two(pack.at + k);
        v[k] = two.x;
        v[k + 1] = two.y;
    }
}

__device__ __forceinline__ void store_two(float* p, float a, float b) {
    p[0] = a;
    p[1] = b;
}
__device__ __forceinline__ void store_two(__half* p, float a, float b) {
    *reinterpret_cast<__half2*>(p) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void store_two(__nv_bfloat16* p, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(p) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ Pack from_floats(const float* v) {
    Pack out;
#pragma unroll
    for (int k = 0; k < PACK; k += 2) store_two(out.at + k, v[k], v[k + 1]);
    return out;
}

// ---- sum of exp(x - peak), peak being the largest x: online, so that one pass over the row is enough
//
// Milakov and Gimelshein, Online normalizer calculation for softmax, 2018. The sum is rescaled once for N values, not for
// each of them, and only where the maximum rises.

struct Total {
    float peak, sum;

    template <int N>
    __device__ void add(const float (&v)[N]) {
        raise(v);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += fast_exp(v[k] - peak);
    }

    // The same, and leaves the exponentials in v.
    template <int N>
    __device__ void exponentiate(float (&v)[N]) {
        raise(v);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            v[k] = fast_exp(v[k] - peak);
            sum += v[k];
        }
    }

    template <int N>
    __device__ void raise(const float (&v)[N]) {
        float largest = v[0];
#pragma unroll
        for (int k = 1; k < N; ++k) largest = fmaxf(largest, v[k]);
        if (largest > peak) {
            sum *= fast_exp(peak - largest);
            peak = largest;
        }
    }
};

__device__ __forceinline__ Total warp_total(Total t) {
    const float peak = warp_max(t.peak);
    return {peak, warp_sum(t.sum * fast_exp(t.peak - peak))};
}

// ---- one row for a warp, or for a block
//
// blockDim.x threads share a row. If they are one warp, blockDim.y rows share a block; else blockDim.y is 1. A thread holds
// up to HELD packs of its row in registers: pack start + i blockDim.x for i in 0..HELD - 1, start being threadIdx.x in a
// row of up to HELD blockDim.x packs (`once`), and a multiple further in a longer one, which is read twice.

constexpr int HELD = 4;

__device__ __forceinline__ offset row_index() { return (offset)blockIdx.x * blockDim.y + threadIdx.y; }

__device__ __forceinline__ bool once(const Row& row) { return row.packs <= HELD * blockDim.x; }

// Over the blockDim.x threads that share a row: a warp, or the whole block. It is a barrier between them: what was read
// before may be overwritten after it. scratch: WARP of them, written once.
__device__ __forceinline__ Total row_total(Total t, Total* scratch) {
    t = warp_total(t);
    if (blockDim.x == WARP) {
        __syncwarp();  // a shuffle does not order memory
        return t;
    }
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) scratch[warp] = t;
    __syncthreads();
    return warp_total(lane < blockDim.x / WARP ? scratch[lane] : Total{LOWEST, 0.0f});
}

__device__ __forceinline__ float row_sum(float x, float* scratch) {
    return blockDim.x == WARP ? warp_sum(x) : block_sum(x, scratch);
}
