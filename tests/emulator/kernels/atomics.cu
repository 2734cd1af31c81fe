// Every atomic that kernels use, each thread on a cell shared with others; results are checked against NumPy.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void reduce_all(const int* x, int* out, unsigned* words, unsigned long long* wide, float* sums,
                                      double* exact, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&out[0], x[i]);
    atomicMax(&out[1], x[i]);
    atomicMin(&out[2], x[i]);
    atomicAnd(&words[0], (unsigned)x[i] | 0xf0f0f0f0u);
    atomicOr(&words[1], (unsigned)x[i] & 0x0f0f0f0fu);
    atomicXor(&words[2], (unsigned)x[i]);
    atomicInc(&words[3], 1000u);
    atomicAdd(&wide[0], (unsigned long long)x[i]);
    atomicMax(&wide[1], (unsigned long long)(unsigned)x[i]);
    atomicAdd(&sums[i % 7], (float)x[i]);
    atomicAdd(&exact[i % 3], (double)x[i]);
}

// The ticket that each thread draws is its own: atomicAdd returns what was there before.
extern "C" __global__ void tickets(int* counter, int* ticket, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ticket[i] = atomicAdd(counter, 1);
}

// The maximum of floats by compare and swap, the usual loop.
extern "C" __global__ void float_max(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* bits = reinterpret_cast<int*>(out);
    int seen = *((volatile int*)bits);
    while (__int_as_float(seen) < x[i]) {
        const int before = atomicCAS(bits, seen, __float_as_int(x[i]));
        if (before == seen) break;
        seen = before;
    }
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
    __shared__ unsigned own[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) own[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) atomicAdd(&bins[b], own[b]);
}

extern "C" __global__ void half_sums(__half2* out, const __half2* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&out[i % 2], x[i]);
}
