// Smooth functions with their derivatives, both from one exponential: what sigmoid.cu, gelu.cu and glu.cu share.
//
// Each is a functor, `y = f(x, derivative)`: it is inlined, and a derivative that nobody reads costs nothing.
#pragma once

#include "common.cuh"

struct Sigmoid {
    __device__ __forceinline__ float operator()(float x, float& derivative) const {
        const float s = logistic(x);
        derivative = s * (1.0f - s);
        return s;
    }
};

// x s(x)
struct SiLU {
    __device__ __forceinline__ float operator()(float x, float& derivative) const {
        const float s = logistic(x);
        derivative = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
};

// h s(2u), 2u = sqrt(8 / pi) (h + 0.044715 h^3)
struct TanhGELU {
    __device__ __forceinline__ float operator()(float h, float& derivative) const {
        constexpr float LINEAR = 1.5957691216f, CUBIC = LINEAR * 0.044715f;
        const float n = h < -40.0f ? -40.0f : h > 40.0f ? 40.0f : h;  // beyond, s is 0 or 1 and h^3 may overflow
        const float square = n * n;
        const float s = __fdividef(1.0f, 1.0f + expf(-n * (LINEAR + CUBIC * square)));
        derivative = s + n * s * (1.0f - s) * (LINEAR + 3.0f * CUBIC * square);
        return fmaxf(h, -40.0f) * s;  // -inf times 0 would be NaN; that of NaN is s
    }
};

// h Phi(h) = max(h, 0) - |h| Phi(-|h|). Only the small tail is approximated, by the polynomial of tests/ops/fit_normal.py,
// so all digits of y are right; and the tail shares its exponential with the density.
struct ExactGELU {
    __device__ __forceinline__ float operator()(float h, float& derivative) const {
        const float a = fabsf(h) > 13.0f ? 13.0f : fabsf(h);  // Phi(-13) = 6e-39; a NaN stays
        const float density = expf(-0.5f * a * a), t = __fdividef(1.0f, 1.0f + 0.35f * a);
        float m = 0.048949391f;
        m = m * t - 0.202148937f;
        m = m * t + 0.240692683f;
        m = m * t - 0.0170714018f;
        m = m * t + 0.155986697f;
        m = m * t + 0.133347602f;
        m = m * t + 0.140271506f;
        m = m * t - 2.73878777e-5f;
        const float tail = density * m, d = tail - 0.3989422804f * density * a;  // Phi(-a), and the derivative at -a
        derivative = h > 0.0f ? 1.0f - d : d;
        return (h > 0.0f ? h : 0.0f) - a * tail;
    }
};
