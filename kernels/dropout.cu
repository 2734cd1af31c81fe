// Dropout: y = x / (1 - p) where an element's random bits say keep, else 0. The backward pass is the same launch on dy.
//
// The bits are made again from the key, so no mask is stored: 2 itemsize bytes an element. One thread makes a block of eight
// words and owns their elements; where these lie on 16-byte boundaries it moves them at once.
#include "philox.cuh"

// y, x: size elements; y may be x. seed ... factor: see make_draw.
extern "C" __global__ void __launch_bounds__(256) dropout(
    storage* y, const storage* x,
    word64 seed, const word64* step, unsigned call, offset first, unsigned threshold, float factor, offset size
) {
    const offset thread = (offset)blockIdx.x * blockDim.x + threadIdx.x;
    const offset start = thread * WORDS - first % WORDS;  // the first element of this thread's block of words
    if (start >= size) return;
    const Draw draw = make_draw(seed, step, call, first, threshold, factor);
    const unsigned keep = keep_bits<WORDS>(draw, start);
    const storage zero = from_float<storage>(0.0f);
    if (start >= 0 && start + WORDS <= size && aligned16(x + start) && aligned16(y + start)) {
#pragma unroll
        for (int i = 0; i < WORDS; i += PACK) {
            Pack p = *reinterpret_cast<const Pack*>(x + start + i);
#pragma unroll
            for (int k = 0; k < PACK; ++k)
                p.at[k] = keep >> (i + k) & 1 ? from_float<storage>(to_float(p.at[k]) * factor) : zero;
            *reinterpret_cast<Pack*>(y + start + i) = p;
        }
        return;
    }
    for (int k = 0; k < WORDS; ++k) {
        const offset i = start + k;
        if (i < 0 || i >= size) continue;
        y[i] = keep >> k & 1 ? from_float<storage>(to_float(x[i]) * factor) : zero;
    }
}
