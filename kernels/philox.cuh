// Random bits as gpulayers/random.py makes them: Philox4x64-10, bit for bit numpy.random.Philox.
//
// Element e of a stream takes word e % 8 of block e / 8; block i is the generator at counter i + 1. Ten rounds of two
// 64-bit products make eight words: about 40 integer instructions a word, which
// takes longer than to move an element.
// Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
#pragma once

#include "common.cuh"

typedef unsigned long long word64;

constexpr int WORDS = 8;  // of 32 bits, in a block

struct Draw {
    word64 seed, stream;  // the generator's key
    offset first;         // element of the stream at which the array begins
    unsigned threshold;   // bits below it: dropped
    float factor;         // what is kept is multiplied by 1 / (1 - p)
};

// The arguments as `draw_arguments` of gpulayers/random.py makes them. The step of the run is read from device memory.
__device__ __forceinline__ Draw make_draw(
    word64 seed, const word64* step, unsigned call, offset first, unsigned threshold, float factor
) {
    return {seed, *step << 24 | call, first, threshold, factor};
}

__device__ __forceinline__ void philox(const Draw& draw, word64 block, unsigned* words) {
    constexpr word64 M0 = 0xD2E7470EE14C6C93ull, M1 = 0xCA5A826395121157ull;
    constexpr word64 W0 = 0x9E3779B97F4A7C15ull, W1 = 0xBB67AE8584CAA73Bull;
    word64 c0 = block + 1, c1 = 0, c2 = 0, c3 = 0, k0 = draw.seed, k1 = draw.stream;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const word64 high0 = __umul64hi(M0, c0), low0 = M0 * c0, high1 = __umul64hi(M1, c2), low1 = M1 * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += W0;
        k1 += W1;
    }
    const word64 c[4] = {c0, c1, c2, c3};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        words[2 * k] = (unsigned)c[k];
        words[2 * k + 1] = (unsigned)(c[k] >> 32);
    }
}

// Bit k: element i + k of the array is kept, for k < N <= WORDS. Where it is not the first word of a block, the bits of two
// blocks are shifted into place. i may be negative; the bits before element 0 mean nothing.
template <int N>
__device__ __forceinline__ unsigned keep_bits(const Draw& draw, offset i) {
    unsigned words[2 * WORDS] = {};
    const offset e = draw.first + i, block = e >> 3;  // rounds down
    const int skip = (int)(e & (WORDS - 1));
    philox(draw, block, words);
    if (skip + N > WORDS) philox(draw, block + 1, words + WORDS);
    unsigned keep = 0;
#pragma unroll
    for (int k = 0; k < 2 * WORDS; ++k) keep |= (unsigned)(words[k] >= draw.threshold) << k;
    return keep >> skip;
}
