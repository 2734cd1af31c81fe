// A block sum and its friends, with places where a test plants one mistake (-DFAULT_...); without any it is correct.
#ifndef MASK
#define MASK 0xffffffffu
#endif
#ifdef FAULT_NO_BARRIER
#define BARRIER
#elif defined(FAULT_WARP_BARRIER)
#define BARRIER __syncwarp();
#elif defined(FAULT_DIVERGENT_BARRIER)
#define BARRIER if (threadIdx.x < 64) __syncthreads(); else __syncthreads_count(1);
#else
#define BARRIER __syncthreads();
#endif

__device__ float block_sum(float v) {
    __shared__ float part[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#ifdef FAULT_DIVERGENT_SHUFFLE
    if (lane < 20)
#endif
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(MASK, v, o);
#ifdef FAULT_UNINITIALISED
    if (lane == 0 && warp != 2) part[warp] = v;
#else
    if (lane == 0) part[warp] = v;
#endif
    BARRIER
    float t = 0;
    for (int w = 0; w < (int)blockDim.x / 32; ++w) t += part[w];
#ifndef FAULT_REUSED
    __syncthreads();                                                     // part may be used again
#endif
    return t;
}

extern "C" __global__ void total(const float* x, float* out, int n) {
    float s = 0, q = 0;
#ifdef FAULT_BOUND
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i <= n; i += blockDim.x * gridDim.x) { s += x[i]; q += x[i] * x[i]; }
#else
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) { s += x[i]; q += x[i] * x[i]; }
#endif
    s = block_sum(s);
    q = block_sum(q);
#ifdef FAULT_PLAIN_ADD
    if (threadIdx.x == 0) out[0] += s;
#else
    if (threadIdx.x == 0) { atomicAdd(&out[0], s); atomicAdd(&out[1], q); }
#endif
}

extern "C" __global__ void vector_copy(float4* out, const float* x, int shift) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = *reinterpret_cast<const float4*>(x + 4 * i + shift);
}

extern "C" __global__ void reverse(float* out, const float* x, int shared_floats) {
    extern __shared__ float row[];
    const int i = threadIdx.x;
    row[i] = x[blockIdx.x * blockDim.x + i];
    __syncthreads();
    out[blockIdx.x * blockDim.x + i] = row[blockDim.x - 1 - i];
}

extern "C" __global__ void row_sum(float* out, const long long* id, const float* x, long long n, float scale) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = scale * x[id[i]];
}

extern "C" __global__ void early_return(float* out, const float* x, int n) {
    __shared__ float cell[64];
    const int i = threadIdx.x;
    if (i >= n) return;
    cell[i] = x[i];
    __syncthreads();
    out[i] = cell[n - 1 - i];
}

extern "C" __global__ void neighbours(float* cells, int n) {              // block b writes what block b + 1 reads
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < n) cells[i] = cells[i + 1] + 1.0f;
}

extern "C" __global__ void same_value(int* flag) { *flag = 7; }

extern "C" __global__ void different_values(int* flag) { *flag = threadIdx.x; }

extern "C" __global__ void writes_its_input(const float* x) { const_cast<float*>(x)[threadIdx.x] = 1.0f; }

extern "C" __global__ void two_arrays(float* out, int shift) {
    __shared__ float a[8], b[8];
    a[threadIdx.x] = 1.0f;
    b[threadIdx.x] = 2.0f;
    __syncthreads();
    out[threadIdx.x] = b[threadIdx.x] + a[threadIdx.x + shift];
}

extern "C" __global__ void endless(int* flag) { while (*((volatile int*)flag) == 0); }

extern "C" __global__ void exited_lanes(float* out, const float* x, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    out[i] = x[i] + __shfl_xor_sync(0xffffffffu, x[i], 1);
}

// Blocks hand their sums to the last one: a release (fence, then the ticket) and an acquire (the ticket, then a fence).
extern "C" __global__ void last_block(float* out, float* sums, const float* x, unsigned* ticket) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = x[blockIdx.x];
#ifndef FAULT_NO_FENCE
        __threadfence();
#endif
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
#ifndef FAULT_NO_FENCE
    __threadfence();
#endif
    if (threadIdx.x == 0) {
        float t = 0;
        for (int b = 0; b < (int)gridDim.x; ++b) t += sums[b];
        *out = t;
    }
}

// y is x, in place: what the second loop reads through the read-only cache may be old.
extern "C" __global__ void in_place(float* y, const float* __restrict__ x, int again) {
    const int i = threadIdx.x;
    y[i] = 2.0f * __ldg(x + i);
    __syncthreads();
    if (again) y[i] += __ldg(x + 31 - i);
}
