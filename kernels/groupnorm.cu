// Group normalisation of (samples, channels, positions), forward and backward; with a group for each channel it is
// instance normalisation. The channels of a group lie side by side, so a group of a sample is a row: see norm.cuh.
//
// Fused: mean, variance, normalisation, gain and bias of each channel in one launch; backward gives dx and, for each sample,
// the sums for dweight and dbias. The group's two means are sums of those of its channels, so a row is read once for all of
// them and once for dx. In storages an element: forward 2, backward 3, as far as a row stays in a cache.
#include "norm.cuh"

constexpr int GROUP_THREADS = 1024;  // of a block at most: a group may be a large part of an image

// rows: samples times groups. channels: of a group, of `positions` each. mean, var: (rows,). weight, bias: (groups channels,)
// or null.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) groupnorm(
    storage* y, float* mean, float* var, const storage* x, const storage* weight, const storage* bias, float eps,
    offset rows, int groups, int channels, int positions
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    const offset row = (offset)blockIdx.x * blockDim.y + threadIdx.y;
    const int channel = row % groups * channels;
    norm_forward<true>(
        y, nullptr, mean, nullptr, var, x, nullptr, weight ? weight + channel : nullptr, bias ? bias + channel : nullptr,
        eps, rows, channels * positions, positions
    );
}

// Sums of a and b over the threads that share a channel: a power of two of them up to a warp, or all of the row.
__device__ __forceinline__ float2 channel_sums(float a, float b, int sharing, float2* scratch) {
    if (sharing > WARP) return row_sums(a, b, scratch);
    for (int step = sharing / 2; step > 0; step /= 2) {
        a += __shfl_xor_sync(ALL_LANES, a, step);
        b += __shfl_xor_sync(ALL_LANES, b, step);
    }
    return make_float2(a, b);
}

// dx = r (g - mean(g) - xhat mean(g xhat)), g = dy weight, means over the row. partial: (samples, 2, groups channels), sums
// over the positions of dy xhat and of dy. sharing: threads to a channel, see channel_sums.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) groupnorm_backward(
    storage* dx, float* partial, const storage* dy, const storage* x, const float* mean, const float* var,
    const storage* weight, float eps, offset rows, int groups, int channels, int positions, int sharing
) {
    if ((offset)blockIdx.x * blockDim.y >= rows) return;
    __shared__ float2 scratch[WARP];
    const offset row = (offset)blockIdx.x * blockDim.y + threadIdx.y;
    const int cols = channels * positions, length = row < rows ? cols : 0;
    const offset start = row * cols;
    const bool vectors = aligned16(x) && aligned16(dy) && aligned16(dx), aligned = vectors && cols % PACK == 0;
    const float m = length ? mean[row] : 0.0f, r = length ? 1.0f / sqrtf(var[row] + eps) : 0.0f;
    const int group = row % groups, every = groups * channels;
    if (weight) weight += group * channels;
    partial += row / groups * 2 * every + group * channels;

    float sum_g = 0.0f, sum_gx = 0.0f;
    for (int top = 0; top < channels; top += blockDim.x / sharing) {
        const int channel = top + threadIdx.x / sharing, lane = threadIdx.x % sharing;
        const bool exists = length && channel < channels;
        const offset from = start + (offset)channel * positions;
        float sum = 0.0f, sum_x = 0.0f;
        for (int i = lane * PACK; exists && i < positions; i += sharing * PACK) {
            const Pack px = load_pack(x + from + i, positions - i, vectors && positions % PACK == 0);
            const Pack pdy = load_pack(dy + from + i, positions - i, vectors && positions % PACK == 0);
#pragma unroll
            for (int k = 0; k < PACK; ++k) {
                const float d = to_float(pdy.at[k]);  // beyond the channel: 0
                sum += d;
                sum_x += d * ((to_float(px.at[k]) - m) * r);
            }
        }
        const float2 total = channel_sums(sum, sum_x, sharing, scratch);
        if (!exists || lane) continue;
        partial[channel] = total.y;
        partial[every + channel] = total.x;
        const float w = weight ? to_float(weight[channel]) : 1.0f;
        sum_g += w * total.x;
        sum_gx += w * total.y;
    }
    const float2 total = row_sums(sum_g, sum_gx, scratch);
    const float mean_g = total.x / cols, mean_gx = total.y / cols;
    for (int i = threadIdx.x * PACK; i < length; i += blockDim.x * PACK) {
        Pack px = load_pack(x + start + i, length - i, aligned);
        const Pack pdy = load_pack(dy + start + i, length - i, aligned);
        const Pack w = load_of_channels(weight, i, length - i, positions, 1.0f);
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const float xhat = (to_float(px.at[k]) - m) * r, g = to_float(pdy.at[k]) * to_float(w.at[k]);
            px.at[k] = from_float<storage>(r * (g - mean_g - xhat * mean_gx));
        }
        store_pack(dx + start + i, px, length - i, aligned);
    }
}
