// One step of the recurrent cells, all that is not a matrix product: the gates of RNN, GRU and LSTM, forward and backward.
//
// Fused: both sums of each gate, its function, the new state, and rows whose sequence is over at step t, which keep their
// state; backward also the sum of the three parts that the gradient of the state has. A step is small, a few hundred KB,
// and its launch and the latency of its loads are what it costs. So a thread takes one number of the state rather than 16
// bytes, to have as many threads as there can be, and its 2 to 9 loads are under way together. Outputs may be inputs:
// a thread reads its numbers before it writes them. In storages a number of the state, forward and backward: rnn 3 and 4,
// gru 12 and 15, lstm 15 and 14; with lengths 2 more in the backward pass of rnn and lstm.
//
// The grid is (B, columns of the state in blocks): a block has one row, so it is all idle or not at all.
// Gates lie side by side in a row: (B, 3 H) r, z, n and (B, 4 H) i, f, g, o. lengths: (B,), or null for no padding.
#include "common.cuh"

constexpr int CELL_THREADS = 128;

__device__ __forceinline__ int column() { return blockIdx.y * blockDim.x + threadIdx.x; }
__device__ __forceinline__ bool idle(const int* lengths, int t) { return lengths && t >= lengths[blockIdx.x]; }

// Where the number at (row, column) of an array with H columns is, and of gate 0 where there are `gates` of them.
__device__ __forceinline__ offset place(int H, int gates = 1) { return (offset)blockIdx.x * gates * H + column(); }

__device__ __forceinline__ float get(const storage* x, offset i) { return to_float(x[i]); }
__device__ __forceinline__ float get_or_zero(const storage* x, offset i) { return x ? to_float(x[i]) : 0.0f; }
__device__ __forceinline__ void put(storage* y, offset i, float value) { y[i] = from_float<storage>(value); }

// ---- rnn: h' = f(gi + gh)

template <bool TANH>
__device__ __forceinline__ void rnn_forward(
    storage* h_new, const storage* gi, const storage* gh, const storage* h, const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset i = place(H);
    if (idle(lengths, t)) {
        h_new[i] = h[i];
        return;
    }
    const float a = get(gi, i) + get(gh, i);
    put(h_new, i, TANH ? tanhf(a) : a <= 0.0f ? 0.0f : a);  // NaN stays
}

template <bool TANH>
__device__ __forceinline__ void rnn_backward(
    storage* da, storage* passed, const storage* dy, const storage* direct, const storage* product, const storage* y,
    const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset i = place(H);
    const float past = get_or_zero(direct, i) + get_or_zero(product, i);
    const bool over = idle(lengths, t);
    if (passed) put(passed, i, over ? past : 0.0f);
    if (over) {
        put(da, i, 0.0f);
        return;
    }
    const float dh = past + get_or_zero(dy, i), h = get(y, i);
    put(da, i, TANH ? dh * (1.0f - h * h) : h > 0.0f ? dh : 0.0f);
}

extern "C" __global__ void __launch_bounds__(CELL_THREADS) rnn_cell_tanh(
    storage* h_new, const storage* gi, const storage* gh, const storage* h, const int* lengths, int t, offset rows, int H
) {
    rnn_forward<true>(h_new, gi, gh, h, lengths, t, rows, H);
}

extern "C" __global__ void __launch_bounds__(CELL_THREADS) rnn_cell_relu(
    storage* h_new, const storage* gi, const storage* gh, const storage* h, const int* lengths, int t, offset rows, int H
) {
    rnn_forward<false>(h_new, gi, gh, h, lengths, t, rows, H);
}

extern "C" __global__ void __launch_bounds__(CELL_THREADS) rnn_cell_tanh_backward(
    storage* da, storage* passed, const storage* dy, const storage* direct, const storage* product, const storage* y,
    const int* lengths, int t, offset rows, int H
) {
    rnn_backward<true>(da, passed, dy, direct, product, y, lengths, t, rows, H);
}

extern "C" __global__ void __launch_bounds__(CELL_THREADS) rnn_cell_relu_backward(
    storage* da, storage* passed, const storage* dy, const storage* direct, const storage* product, const storage* y,
    const int* lengths, int t, offset rows, int H
) {
    rnn_backward<false>(da, passed, dy, direct, product, y, lengths, t, rows, H);
}

// ---- gru: h' = (1 - z) n + z h, n = tanh(gi_n + r hn), hn = gh_n + bias. gates may be gi.

extern "C" __global__ void __launch_bounds__(CELL_THREADS) gru_cell(
    storage* h_new, storage* gates, storage* hn,
    const storage* gi, const storage* gh, const storage* bias, const storage* h, const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset i = place(H), r_at = place(H, 3), z_at = r_at + H, n_at = z_at + H;
    const float r = logistic(get(gi, r_at) + get(gh, r_at)), z = logistic(get(gi, z_at) + get(gh, z_at));
    const float state = get(gh, n_at) + get_or_zero(bias, column());
    const float n = tanhf(get(gi, n_at) + r * state), before = get(h, i);
    put(gates, r_at, r);
    put(gates, z_at, z);
    put(gates, n_at, n);
    put(hn, i, state);
    put(h_new, i, idle(lengths, t) ? before : n + z * (before - n));
}

// dgi may be gates, dh may be direct.
extern "C" __global__ void __launch_bounds__(CELL_THREADS) gru_cell_backward(
    storage* dgi, storage* dgh, storage* dh,
    const storage* dy, const storage* direct, const storage* product, const storage* gates, const storage* hn,
    const storage* h, const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset i = place(H), r_at = place(H, 3), z_at = r_at + H, n_at = z_at + H;
    const float past = get_or_zero(direct, i) + get_or_zero(product, i);
    float dr = 0.0f, dz = 0.0f, dn = 0.0f, dhn = 0.0f, before = past;
    if (!idle(lengths, t)) {
        const float dh_new = past + get_or_zero(dy, i);
        const float r = get(gates, r_at), z = get(gates, z_at), n = get(gates, n_at), share = dh_new * (1.0f - z);
        dn = share * (1.0f - n * n);
        dz = share * (get(h, i) - n) * z;
        dhn = dn * r;
        dr = dhn * get(hn, i) * (1.0f - r);
        before = dh_new * z;
    }
    put(dgi, r_at, dr);
    put(dgi, z_at, dz);
    put(dgi, n_at, dn);
    put(dgh, r_at, dr);
    put(dgh, z_at, dz);
    put(dgh, n_at, dhn);
    put(dh, i, before);
}

// ---- lstm: c' = f c + i g, h' = o tanh(c'). gates may be gi.

extern "C" __global__ void __launch_bounds__(CELL_THREADS) lstm_cell(
    storage* h_new, storage* c_new, storage* gates,
    const storage* gi, const storage* gh, const storage* h, const storage* c, const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset at = place(H), i_at = place(H, 4), f_at = i_at + H, g_at = f_at + H, o_at = g_at + H;
    const float i = logistic(get(gi, i_at) + get(gh, i_at)), f = logistic(get(gi, f_at) + get(gh, f_at));
    const float g = tanhf(get(gi, g_at) + get(gh, g_at)), o = logistic(get(gi, o_at) + get(gh, o_at));
    put(gates, i_at, i);
    put(gates, f_at, f);
    put(gates, g_at, g);
    put(gates, o_at, o);
    if (idle(lengths, t)) {
        h_new[at] = h[at];
        c_new[at] = c[at];
        return;
    }
    const float cell = f * get(c, at) + i * g;
    put(c_new, at, cell);
    put(h_new, at, o * tanhf(cell));
}

// da may be gates, dc_out may be dc, passed may be direct, or null without lengths.
extern "C" __global__ void __launch_bounds__(CELL_THREADS) lstm_cell_backward(
    storage* da, storage* dc_out, storage* passed,
    const storage* dy, const storage* direct, const storage* product, const storage* dc, const storage* gates,
    const storage* c, const storage* c_new, const int* lengths, int t, offset rows, int H
) {
    if (blockIdx.x >= rows || column() >= H) return;
    const offset at = place(H), i_at = place(H, 4), f_at = i_at + H, g_at = f_at + H, o_at = g_at + H;
    const float past = get_or_zero(direct, at) + get_or_zero(product, at), past_c = get_or_zero(dc, at);
    const bool over = idle(lengths, t);
    float di = 0.0f, df = 0.0f, dg = 0.0f, d_o = 0.0f, before = past_c;
    if (!over) {
        const float i = get(gates, i_at), f = get(gates, f_at), g = get(gates, g_at), o = get(gates, o_at);
        const float dh = past + get_or_zero(dy, at), tanh_c = tanhf(get(c_new, at));
        const float cell = past_c + dh * o * (1.0f - tanh_c * tanh_c);
        di = cell * g * i * (1.0f - i);
        df = cell * get(c, at) * f * (1.0f - f);
        dg = cell * i * (1.0f - g * g);
        d_o = dh * tanh_c * o * (1.0f - o);
        before = cell * f;
    }
    put(da, i_at, di);
    put(da, f_at, df);
    put(da, g_at, dg);
    put(da, o_at, d_o);
    put(dc_out, at, before);
    if (passed) put(passed, at, over ? past : 0.0f);
}

// ---- lengths, once a sequence: a note of the first that is not in 0..size - 1

extern "C" __global__ void check_lengths(long long* errors, const int* lengths, int size, int rows) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    if (lengths[row] < 0 || lengths[row] >= size) report_error(errors, BAD_LENGTH, row, lengths[row], size);
}
