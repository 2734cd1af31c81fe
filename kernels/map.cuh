// Elementwise kernels: y[i] = f(x[i]) and its kin, for a function f of floats.
//
// A thread takes 16 bytes of each array: such a kernel is bound by memory, and 2048 threads of a multiprocessor then have
// 32 KB or more under way. f is a lambda or a functor: it is inlined, and what a kernel does not use of it costs nothing.
// Arrays may be the same one (in place), for a thread reads its elements before it writes them.
#pragma once

#include "common.cuh"

// This thread's elements: first, first + 1, ... `count` of them, none beyond the end of the array.
struct Part {
    offset first;
    int count;
};

__device__ __forceinline__ Part part_from(offset first, offset n) {
    return {first, first >= n ? 0 : n - first < PACK ? (int)(n - first) : PACK};
}
__device__ __forceinline__ Part my_part(offset n) {
    return part_from(((offset)blockIdx.x * blockDim.x + threadIdx.x) * PACK, n);
}
// The same thread's next elements, for a grid that does not cover the array.
__device__ __forceinline__ Part next_part(Part p, offset n) {
    return part_from(p.first + (offset)gridDim.x * blockDim.x * PACK, n);
}

__device__ __forceinline__ Pack load(const storage* x, Part p) { return load_pack(x + p.first, p.count, aligned16(x)); }
__device__ __forceinline__ void store(storage* y, Part p, const Pack& value) {
    store_pack(y + p.first, value, p.count, aligned16(y));
}

// v[i % cols] for the elements i: a row vector beside an array with `cols` columns. Zeros if v is null.
__device__ __forceinline__ Pack load_repeated(const storage* v, Part p, int cols) {
    Pack out = {};
    if (!v) return out;
    int col = (int)(p.first % cols);
    if (cols % PACK == 0) return load_pack(v + col, PACK, aligned16(v));
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        out.at[k] = v[col];
        if (++col == cols) col = 0;
    }
    return out;
}

// y[i] = f(x[i])
template <typename F> __device__ __forceinline__ void map(storage* y, const storage* x, offset n, F f) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack p = load(x, mine);
#pragma unroll
    for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(f(to_float(p.at[k])));
    store(y, mine, p);
}

// y[i] = f(a[i], b[i])
template <typename F> __device__ __forceinline__ void map(storage* y, const storage* a, const storage* b, offset n, F f) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack p = load(a, mine);
    const Pack q = load(b, mine);
#pragma unroll
    for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(f(to_float(p.at[k]), to_float(q.at[k])));
    store(y, mine, p);
}

// y[i] = f(x[i], v[i % cols])
template <typename F>
__device__ __forceinline__ void map_rows(storage* y, const storage* x, const storage* v, int cols, offset n, F f) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    Pack p = load(x, mine);
    const Pack q = load_repeated(v, mine, cols);
#pragma unroll
    for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(f(to_float(p.at[k]), to_float(q.at[k])));
    store(y, mine, p);
}
