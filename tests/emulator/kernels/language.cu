// C++ as kernels use it: calls that stay calls, switches, local arrays, constants, structs by value, 64-bit offsets.
struct Affine { float scale; float shift; int kind; };
__constant__ float table[4] = {1.0f, 10.0f, 100.0f, 1000.0f};
__device__ int counter_value = 41;
__device__ const int primes[6] = {2, 3, 5, 7, 11, 13};

__noinline__ __device__ float slow_power(float x, int n) {
    float y = 1.0f;
    for (int k = 0; k < n; ++k) y *= x;
    return y;
}
__noinline__ __device__ void swap_values(float* a, float* b) {
    const float t = *a;
    *a = *b;
    *b = t;
}

extern "C" __global__ void calls(float* out, const float* x, Affine affine, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = slow_power(x[i], i % 5), b = affine.scale * x[i] + affine.shift;
    if (affine.kind == 3 && i % 2) swap_values(&a, &b);
    out[2 * i] = a;
    out[2 * i + 1] = b;
}

extern "C" __global__ void switches(int* out, const int* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int y;
    switch (x[i]) {
        case 0: y = 5 * i; break;
        case 1: y = i - 7; break;
        case 2: y = i ^ 0x55; break;
        case 3: y = primes[i % 6]; break;
        case 4: y = (int)table[i & 3]; break;
        case 5: y = __popc(i); break;
        case 6: y = __clz(i); break;
        default: y = -1;
    }
    out[i] = y;
}

extern "C" __global__ void local_array(int* out, const int* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int heap[16];
    for (int k = 0; k < 16; ++k) heap[k] = x[(i + k) % n];
    for (int k = 0; k < 16; ++k)                                   // insertion sort: indices known at run time only
        for (int j = k; j > 0 && heap[j - 1] > heap[j]; --j) {
            const int t = heap[j];
            heap[j] = heap[j - 1];
            heap[j - 1] = t;
        }
    out[i] = heap[x[i] & 15];
}

extern "C" __global__ void module_variable(int* out) {
    if (threadIdx.x == 0) out[blockIdx.x] = atomicAdd(&counter_value, 1);
}

// Threads leave the loop one by one, some by a `continue` and some by a `break`.
extern "C" __global__ void collatz(int* out, int n, int most) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = i + 1;
    int steps = 0;
    while (x != 1) {
        if (++steps > most) { steps = -1; break; }
        if (x % 2 == 0) { x /= 2; continue; }
        x = 3 * x + 1;
    }
    out[i] = steps;
}

// Pointers that may lead to shared, local or global memory: generic addresses.
extern "C" __global__ void generic(float* out, float* in) {
    __shared__ float cell[64];
    float own[2] = {-1.0f, -2.0f};
    cell[threadIdx.x] = 100.0f + threadIdx.x;
    __syncthreads();
    float* p = threadIdx.x % 3 == 0 ? &cell[threadIdx.x] : threadIdx.x % 3 == 1 ? &in[threadIdx.x] : &own[threadIdx.x & 1];
    *p += 0.5f;
    out[threadIdx.x] = *p;
}

extern "C" __global__ void doubles(double* out, const double* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = exp(x[i]) + log1p(fabs(x[i])) + sqrt(fabs(x[i])) + erf(x[i]) + pow(fabs(x[i]), 1.5) + sin(x[i]);
}

extern "C" __global__ void floats(float* out, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = expf(x[i]) + log1pf(fabsf(x[i])) + erff(x[i]) + tanhf(x[i]) + powf(fabsf(x[i]), 1.5f)
        + sinf(100.0f * x[i]) + roundf(x[i]) + fmodf(x[i], 0.3f) + __fdividef(x[i], 3.0f) + cbrtf(x[i]);
}

extern "C" __global__ void checked(int* out, int limit) {
    if (threadIdx.x == 5) { if ((int)blockIdx.x >= limit) __trap(); }
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

extern "C" __global__ void speak(const float* x, int n) {
    const int i = threadIdx.x;
    if (i < n) printf("block %d thread %3d: %.3f %s %lld %x 100%%\n", blockIdx.x, i, x[i], "end", -7ll * n, 255u);
    assert(x[i] < 5.0f);
}
