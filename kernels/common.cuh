// What every kernel shares: the storage type, chosen when it is compiled (-DSTORAGE=float | __half | __nv_bfloat16),
// its way to float and back (arithmetic is always float), and offsets that are 64 bits wide, because a batch of logits
// passes 2^31 elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef STORAGE
#define STORAGE float
#endif

typedef STORAGE storage;
typedef long long offset;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
