// The intrinsics of cuda_fp16.h and cuda_bf16.h; on older architectures they become long integer code.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> __device__ float widen(T x);
template <> __device__ float widen(__half x) { return __half2float(x); }
template <> __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T> __device__ T narrow(float x);
template <> __device__ __half narrow(float x) { return __float2half(x); }
template <> __device__ __nv_bfloat16 narrow(float x) { return __float2bfloat16(x); }

template <typename T> __global__ void through_float(T* y, const T* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = narrow<T>(widen(x[i]) * 1.5f + 0.25f);
}
template <typename T> __global__ void native(T* y, const T* a, const T* b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hfma(a[i], b[i], __hsub(a[i], __hmul(b[i], b[i])));
}
template <typename P> __global__ void pairs(P* y, const P* a, const P* b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hmax2(__hadd2(a[i], b[i]), __hfma2(a[i], b[i], a[i]));
}
extern "C" __global__ void functions(__half* y, const __half* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = hexp(x[i]) + hsqrt(__habs(x[i])) + hrcp(x[i]) + __int2half_rn(__half2int_rz(x[i]));
}
extern "C" __global__ void comparisons(int* y, const __half2* a, const __half2* b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hlt(a[i].x, b[i].x) + 2 * __hge(a[i].y, b[i].y) + 4 * __hbgt2(a[i], b[i]);
}
// Eight halves in one 16-byte load.
extern "C" __global__ void vectors(uint4* y, const uint4* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 v = x[i];
    __half2* h = reinterpret_cast<__half2*>(&v);
    for (int k = 0; k < 4; ++k) h[k] = __floats2half2_rn(2.0f * __low2float(h[k]), -__high2float(h[k]));
    y[i] = v;
}
