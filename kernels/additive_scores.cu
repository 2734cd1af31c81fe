// Scores of additive attention, v' tanh(query + key) for every pair of a query and a key, and its backward.
//
// Fused forward: sum, tanh and the product with v; a warp takes a pair, 16 bytes a lane, and leaves tanh's output u for
// backward. Backward goes over u twice, once down the keys (dquery, and dv of each query) and once down the queries
// (dkeys): either way a thread owns its sum, so there are no atomics and the order is fixed, and a decoder that looks
// step by step has one query a sample and as many threads for dkeys as u has elements. Storages an element of u:
// forward 1 and, of the small inputs, what the caches do not hold; backward 2.
#include "common.cuh"

constexpr int SCORE_WARPS = 4;      // of a block of the forward pass
constexpr int GRADIENT_THREADS = 128;

// scores (pairs,), u (pairs, A), query (B T, A), keys (B, S, A), v (A,); pair = (b T + t) S + s.
extern "C" __global__ void __launch_bounds__(SCORE_WARPS * WARP) additive_scores(
    storage* scores, storage* u, const storage* query, const storage* keys, const storage* v,
    offset pairs, int T, int S, int A
) {
    const offset pair = (offset)blockIdx.x * SCORE_WARPS + threadIdx.x / WARP;
    if (pair >= pairs) return;
    const bool aligned = A % PACK == 0 && aligned16(query) && aligned16(keys) && aligned16(v);  // u is a new array
    const offset bt = pair / S, key = bt / T * S + pair % S;
    query += bt * A;
    keys += key * A;
    u += pair * A;
    float sum = 0.0f;
    for (int a = threadIdx.x % WARP * PACK; a < A; a += WARP * PACK) {
        const Pack q = load_pack(query + a, A - a, aligned), k = load_pack(keys + a, A - a, aligned);
        const Pack weight = load_pack(v + a, A - a, aligned);
        Pack out;
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float y = tanhf(to_float(q.at[i]) + to_float(k.at[i]));
            sum += y * to_float(weight.at[i]);  // 0 past the end
            out.at[i] = from_float<storage>(y);
        }
        store_pack(u + a, out, A - a, aligned);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) scores[pair] = from_float<storage>(sum);
}

// dquery (rows, A), dv (rows, A) in float: of each query, to be summed. dscores (rows, S), u (rows, S, A); rows = B T.
extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS) additive_scores_backward_query(
    storage* dquery, float* dv, const storage* dscores, const storage* u, const storage* v, offset rows, int S, int A
) {
    const offset row = blockIdx.x;
    const int a = blockIdx.y * GRADIENT_THREADS + threadIdx.x;
    if (row >= rows || a >= A) return;
    float slope = 0.0f, value = 0.0f;
    for (int s = 0; s < S; ++s) {
        const float ds = to_float(dscores[row * S + s]), y = to_float(u[(row * S + s) * A + a]);
        slope += ds * (1.0f - y * y);
        value += ds * y;
    }
    dquery[row * A + a] = from_float<storage>(slope * to_float(v[a]));
    dv[row * A + a] = value;
}

// dkeys (rows, A), dscores (B, T, S), u (B, T, S, A); rows = B S.
extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS) additive_scores_backward_keys(
    storage* dkeys, const storage* dscores, const storage* u, const storage* v, offset rows, int T, int S, int A
) {
    const offset row = blockIdx.x;
    const int a = blockIdx.y * GRADIENT_THREADS + threadIdx.x;
    if (row >= rows || a >= A) return;
    const offset first = row / S * T * S + row % S;  // the pair of query 0
    float slope = 0.0f;
    for (int t = 0; t < T; ++t) {
        const offset pair = first + (offset)t * S;
        const float y = to_float(u[pair * A + a]);
        slope += to_float(dscores[pair]) * (1.0f - y * y);
    }
    dkeys[row * A + a] = from_float<storage>(slope * to_float(v[a]));
}
