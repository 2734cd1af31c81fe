// Exchange between the lanes of a warp; each output row is one primitive.
extern "C" __global__ void exchange(int* out, const int* x, int n) {
    const int i = threadIdx.x, lane = i & 31, v = x[i];
    const unsigned all = 0xffffffffu;
    int row = 0;
    out[row++ * n + i] = __shfl_sync(all, v, (lane * 7 + 3) & 31);
    out[row++ * n + i] = __shfl_up_sync(all, v, 5);
    out[row++ * n + i] = __shfl_down_sync(all, v, 9);
    out[row++ * n + i] = __shfl_xor_sync(all, v, 13);
    out[row++ * n + i] = __shfl_sync(all, v, lane + 3, 8);
    out[row++ * n + i] = __shfl_up_sync(all, v, 3, 16);
    out[row++ * n + i] = __shfl_down_sync(all, v, 3, 16);
    out[row++ * n + i] = (int)__ballot_sync(all, v > 0);
    out[row++ * n + i] = __any_sync(all, v > 900);
    out[row++ * n + i] = __all_sync(all, v > -990);
    out[row++ * n + i] = (int)__activemask();
}

// Half a warp on its own, with a mask that names just these lanes.
extern "C" __global__ void half_warp(int* out, const int* x) {
    const int i = threadIdx.x, lane = i & 31;
    int v = x[i];
    if (lane < 16)
        for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(0x0000ffffu, v, o);
    else
        for (int o = 8; o; o >>= 1) v = max(v, __shfl_xor_sync(0xffff0000u, v, o));
    out[i] = v;
}

// Lanes come to the vote by different ways, and at different times.
extern "C" __global__ void late(int* out, const int* x) {
    const int i = threadIdx.x;
    int v = x[i], steps = 0;
    while (v > 0) { v -= 3; ++steps; }
    out[i] = (int)__ballot_sync(0xffffffffu, steps & 1);
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void reductions(unsigned* out, const unsigned* x, int n) {
    const int i = threadIdx.x;
    const unsigned v = x[i], all = 0xffffffffu;
    out[i] = __reduce_add_sync(all, v);
    out[n + i] = __reduce_min_sync(all, v);
    out[2 * n + i] = __reduce_max_sync(all, v);
    out[3 * n + i] = __reduce_xor_sync(all, v);
    out[4 * n + i] = __match_any_sync(all, v & 3);
    int agree;
    out[5 * n + i] = __match_all_sync(all, v & 0, &agree) + agree;
}
#endif

extern "C" __global__ void block_votes(int* out, const int* x) {
    const int i = threadIdx.x, v = x[blockIdx.x * blockDim.x + i];
    const int count = __syncthreads_count(v > 0), any = __syncthreads_or(v > 950), all = __syncthreads_and(v > -950);
    if (i == 0) { out[3 * blockIdx.x] = count; out[3 * blockIdx.x + 1] = any != 0; out[3 * blockIdx.x + 2] = all != 0; }
}

// Threads of a warp pass values through shared memory, ordered by __syncwarp alone.
extern "C" __global__ void warp_scan(int* out, const int* x) {
    __shared__ int cell[128];
    const int i = threadIdx.x, lane = i & 31;
    cell[i] = x[i];
    __syncwarp();
    for (int o = 1; o < 32; o <<= 1) {
        const int before = lane >= o ? cell[i - o] : 0;
        __syncwarp();
        cell[i] += before;
        __syncwarp();
    }
    out[i] = cell[i];
}

// The two halves of the block meet at barriers of their own.
extern "C" __global__ void named_barriers(int* out, const int* x) {
    __shared__ int cell[128];
    const int i = threadIdx.x, half = i / 64;
    cell[i] = x[i];
    asm volatile("bar.sync %0, 64;" ::"r"(half + 1) : "memory");
    out[i] = cell[half * 64 + (i * 5 + 1) % 64];
}
