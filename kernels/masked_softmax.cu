// Softmax of scaled attention scores in which hidden entries take no part, with dropout; and its backward.
//
// Fused: scale, soft cap, boolean mask, causal mask, softmax, dropout in one launch, and backward the same but for the cap,
// with the dropped weights made again. A row stays in the registers of a warp or of a block (rows.cuh), so it is read once.
// What is hidden is never used, and not read unless it shares 16 bytes with a visible entry; exact zeros are written there.
// Bytes an entry: forward, 2 itemsize; backward, 3; causal, half of the read ones. Dropout adds one write of the dropped
// weights and the time of making the random bits (philox.cuh), for which no mask has to be stored; it has entry points of
// its own because the generator takes 40 registers, which the others put into more threads.
#include "philox.cuh"
#include "rows.cuh"

constexpr int MOST_THREADS = 512;  // of a block; "at least 1 block" keeps ptxas from spilling to reach 64 registers
constexpr unsigned ALL = (1u << PACK) - 1;  // one bit for each element of a pack

// Scores (groups, queries, keys), groups being samples times heads, and what hides them.
struct Scores {
    const bool* hide;                       // or null; its entries lie so far apart:
    offset of_batch, of_head, of_query;
    int of_key;                             // 0 or 1
    bool causal;
    float scale, cap;                       // cap tanh(scale score / cap) takes part if cap is not 0; not in backward
    int heads, queries, keys;
};

// The row of this thread. A block works on blockDim.y queries of one group.
struct Query {
    bool exists;
    offset index;      // of (groups, queries)
    const bool* hide;  // its entry for key 0, or null
    int of_key, seen;  // seen: keys that the causal mask leaves

    __device__ explicit Query(const Scores& s) {
        const unsigned tiles = (s.queries + blockDim.y - 1) / blockDim.y, group = blockIdx.x / tiles;
        const int query = blockIdx.x % tiles * blockDim.y + threadIdx.y;
        exists = query < s.queries;
        index = (offset)group * s.queries + query;
        hide = s.hide;
        of_key = s.of_key;
        if (hide) hide += group / s.heads * s.of_batch + group % s.heads * s.of_head + query * s.of_query;
        seen = s.causal ? max(0, min(s.keys, query + 1 + s.keys - s.queries)) : s.keys;
    }

    // Bit k: element k of the pack is in the row, and visible.
    __device__ unsigned visible(const Row& row, int pack) const {
        const int first = row.first(pack), left = seen - first;
        if (pack >= row.packs || left <= 0) return 0;
        unsigned bits = ALL;
        if (left < PACK) bits &= (1u << left) - 1;
        if (first < 0) bits &= ~0u << -first;
        if (!hide) return bits;
        if (of_key == 0) return *hide ? 0 : bits;
#pragma unroll
        for (int k = 0; k < PACK; ++k)
            if (bits >> k & 1 && hide[first + k]) bits &= ~(1u << k);
        return bits;
    }
};

// Those of the shown entries that dropout keeps. Not unrolled, or the generator would be there HELD times.
__device__ __forceinline__ unsigned keep_shown(
    const Draw& draw, offset begin, const Row& row, int start, unsigned shown
) {
    unsigned kept = 0;
#pragma unroll 1
    for (int i = 0; i < HELD; ++i) {
        if (shown >> (i * PACK) & ALL)
            kept |= (keep_bits<PACK>(draw, begin + row.first(start + i * blockDim.x)) & ALL) << (i * PACK);
    }
    return kept & shown;
}

// Writes w keep / (1 - p) for one pack. w is as it is stored: forward and backward multiply by the same weights.
__device__ __forceinline__ void store_dropped(
    storage* dropped, const Row& row, int pack, const float* w, unsigned keep, float factor
) {
    float v[PACK];
#pragma unroll
    for (int k = 0; k < PACK; ++k) v[k] = keep >> k & 1 ? w[k] * factor : 0.0f;
    row.store(dropped, pack, from_floats(v));
}

// ---- forward

// Scaled and capped scores of up to HELD packs from `start` on, -inf where hidden. Returns the visible bits, PACK for each.
__device__ __forceinline__ unsigned load_scores(
    float* v, const storage* scores, const Row& row, const Query& query, int start, const Scores& s
) {
    unsigned shown = 0;
    Pack p[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int j = start + i * blockDim.x;
        const unsigned bits = query.visible(row, j);
        shown |= bits << (i * PACK);
        p[i] = {};
        if (bits) p[i] = row.load(scores, j, from_float<storage>(0.0f));
    }
#pragma unroll
    for (int i = 0; i < HELD; ++i) to_floats(p[i], v + i * PACK);
#pragma unroll
    for (int k = 0; k < HELD * PACK; ++k) v[k] *= s.scale;
    if (s.cap > 0.0f) {
#pragma unroll
        for (int k = 0; k < HELD * PACK; ++k) v[k] = s.cap * tanhf(v[k] / s.cap);
    }
#pragma unroll
    for (int k = 0; k < HELD * PACK; ++k) v[k] = shown >> k & 1 ? v[k] : minus_infinity();
    return shown;
}

template <bool DROP>
__device__ __forceinline__ void forward(
    storage* weights, storage* dropped, const storage* scores, const Scores& s, const Draw& draw
) {
    const Query query(s);
    if (!query.exists) return;
    __shared__ Total scratch[WARP];
    const offset begin = query.index * s.keys;
    Row row(scores += begin, s.keys);
    row.also(weights += begin);
    if (DROP) row.also(dropped += begin);

    float v[HELD * PACK];
    unsigned shown = 0;
    Total own = {LOWEST, 0.0f};
    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        shown = load_scores(v, scores, row, query, start, s);
        own.exponentiate(v);
    }
    const Total total = row_total(own, scratch);
    const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;  // 0: nothing is visible
    const float own_inverse = fast_exp(own.peak - total.peak) * inverse;

    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        if (!once(row)) shown = load_scores(v, scores, row, query, start, s);
        unsigned kept = 0;
        if (DROP) kept = keep_shown(draw, begin, row, start, shown);
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            float* at = v + i * PACK;
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float w = once(row) ? at[k] * own_inverse : fast_exp(at[k] - total.peak) * inverse;
                at[k] = shown >> (i * PACK + k) & 1 ? w : 0.0f;
            }
            const Pack p = from_floats(at);
            row.store(weights, j, p);
            if (!DROP) continue;
            to_floats(p, at);
            store_dropped(dropped, row, j, at, kept >> (i * PACK), draw.factor);
        }
    }
}

// weights: as scores, may be scores. hide ... keys: see Scores.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) masked_softmax(
    storage* weights, const storage* scores,
    const bool* hide, offset of_batch, offset of_head, offset of_query, int of_key, bool causal, float scale, float cap,
    int heads, int queries, int keys
) {
    const Scores s = {hide, of_batch, of_head, of_query, of_key, causal, scale, cap, heads, queries, keys};
    forward<false>(weights, nullptr, scores, s, {});
}

// dropped: weights keep / (1 - p). seed ... factor: see make_draw.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) masked_softmax_dropout(
    storage* weights, storage* dropped, const storage* scores,
    const bool* hide, offset of_batch, offset of_head, offset of_query, int of_key, bool causal, float scale, float cap,
    int heads, int queries, int keys,
    word64 seed, const word64* step, unsigned call, offset first, unsigned threshold, float factor
) {
    const Scores s = {hide, of_batch, of_head, of_query, of_key, causal, scale, cap, heads, queries, keys};
    forward<true>(weights, dropped, scores, s, make_draw(seed, step, call, first, threshold, factor));
}

// ---- backward

// Up to HELD packs of weights and of gradients of the dropped weights, from `start` on.
struct Held {
    Pack w[HELD], d[HELD];
    unsigned shown;  // the visible bits, PACK for each pack

    __device__ void load(const storage* weights, const storage* dweights, const Row& row, const Query& query, int start) {
        const storage zero = from_float<storage>(0.0f);
        shown = 0;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            const unsigned bits = query.visible(row, j);
            shown |= bits << (i * PACK);
            w[i] = d[i] = {};
            if (!bits) continue;
            w[i] = row.load(weights, j, zero);
            d[i] = row.load(dweights, j, zero);
        }
    }

    // One pack as floats: weights, 0 where hidden, and their gradients, 0 where hidden or dropped.
    __device__ void floats(int i, float* w_out, float* d_out, unsigned kept, float factor) const {
        to_floats(w[i], w_out);
        to_floats(d[i], d_out);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            w_out[k] = shown >> (i * PACK + k) & 1 ? w_out[k] : 0.0f;
            d_out[k] = kept >> (i * PACK + k) & 1 ? d_out[k] * factor : 0.0f;
        }
    }
};

template <bool DROP>
__device__ __forceinline__ void backward(
    storage* dscores, storage* dropped, const storage* dweights, const storage* weights, const Scores& s,
    const Draw& draw
) {
    const Query query(s);
    if (!query.exists) return;
    __shared__ float scratch[WARP];
    const offset begin = query.index * s.keys;
    Row row(weights += begin, s.keys);
    row.also(dweights += begin);
    row.also(dscores += begin);
    if (DROP) row.also(dropped += begin);
    const float factor = DROP ? draw.factor : 1.0f;

    Held held;
    unsigned kept = 0;
    float w[PACK], d[PACK], sum = 0.0f;
    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        held.load(weights, dweights, row, query, start);
        kept = DROP ? keep_shown(draw, begin, row, start, held.shown) : held.shown;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            held.floats(i, w, d, kept, factor);
#pragma unroll
            for (int k = 0; k < PACK; ++k) sum += w[k] * d[k];
        }
    }
    sum = row_sum(sum, scratch);

    for (int start = threadIdx.x; start < row.packs; start += HELD * blockDim.x) {
        if (!once(row)) {
            held.load(weights, dweights, row, query, start);
            kept = DROP ? keep_shown(draw, begin, row, start, held.shown) : held.shown;
        }
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int j = start + i * blockDim.x;
            if (j >= row.packs) break;
            held.floats(i, w, d, kept, factor);
            if (DROP) store_dropped(dropped, row, j, w, kept >> (i * PACK), factor);
#pragma unroll
            for (int k = 0; k < PACK; ++k) d[k] = s.scale * w[k] * (d[k] - sum);
            row.store(dscores, j, from_floats(d));
        }
    }
}

// dscores, dweights, weights: as the scores; dscores may be dweights.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) masked_softmax_backward(
    storage* dscores, const storage* dweights, const storage* weights,
    const bool* hide, offset of_batch, offset of_head, offset of_query, int of_key, bool causal, float scale,
    int heads, int queries, int keys
) {
    const Scores s = {hide, of_batch, of_head, of_query, of_key, causal, scale, 0.0f, heads, queries, keys};
    backward<false>(dscores, nullptr, dweights, weights, s, {});
}

// dweights: the gradient of the dropped weights. dropped: written once more, for their product with other gradients.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) masked_softmax_dropout_backward(
    storage* dscores, storage* dropped, const storage* dweights, const storage* weights,
    const bool* hide, offset of_batch, offset of_head, offset of_query, int of_key, bool causal, float scale,
    int heads, int queries, int keys,
    word64 seed, const word64* step, unsigned call, offset first, unsigned threshold, float factor
) {
    const Scores s = {hide, of_batch, of_head, of_query, of_key, causal, scale, 0.0f, heads, queries, keys};
    backward<true>(dscores, dropped, dweights, weights, s, make_draw(seed, step, call, first, threshold, factor));
}
