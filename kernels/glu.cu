// Gated linear units of the halves a and b of each row: y = a g(b), da = dy g(b), db = dy a g'(b).
//
// Fused: both halves are read once, no gate is written. In storages an element of y: forward 3, backward 5. A thread has 16
// bytes of y and, `cols` apart, of each half. The gate is the same for all threads, so the branch costs nothing.
#include "gates.cuh"
#include "map.cuh"

enum Gate { SIGMOID, SILU, GELU, TANH_GELU };

// Where the elements of a part of (rows, cols) are in (rows, 2 cols): from `first` on, each row's end at column `cols`.
struct Place {
    offset first;
    int col, cols, count;

    __device__ __forceinline__ Place(Part p, int cols) : cols(cols), count(p.count) {
        const offset row = p.first / cols;  // while both fit, the compiler divides in 32 bits
        col = (int)(p.first - row * cols);
        first = p.first + row * cols;
    }
    // Parts do not cross a row's end, and all begin on a 16-byte boundary if one does.
    __device__ __forceinline__ bool whole() const { return cols % PACK == 0; }
};

// x: where the half begins, in the first row.
__device__ __forceinline__ Pack load_half(const storage* x, const Place& at) {
    x += at.first;
    if (at.whole()) return load_pack(x, at.count, aligned16(x));
    Pack out = {};
    int col = at.col;
#pragma unroll
    for (int k = 0; k < PACK; ++k, ++x) {
        if (k < at.count) out.at[k] = *x;
        if (++col == at.cols) {
            col = 0;
            x += at.cols;
        }
    }
    return out;
}

__device__ __forceinline__ void store_half(storage* x, const Place& at, const Pack& value) {
    x += at.first;
    if (at.whole()) return store_pack(x, value, at.count, aligned16(x));
    int col = at.col;
#pragma unroll
    for (int k = 0; k < PACK; ++k, ++x) {
        if (k < at.count) *x = value.at[k];
        if (++col == at.cols) {
            col = 0;
            x += at.cols;
        }
    }
}

// a becomes y = a g(b).
template <typename F> __device__ __forceinline__ void forward(Pack& a, const Pack& b, F g) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        float slope;
        a.at[k] = from_float<storage>(to_float(a.at[k]) * g(to_float(b.at[k]), slope));
    }
}

// a and b become their gradients.
template <typename F> __device__ __forceinline__ void backward(Pack& a, Pack& b, const Pack& dy, F g) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) {
        float slope;
        const float d = to_float(dy.at[k]), value = to_float(a.at[k]);
        a.at[k] = from_float<storage>(d * g(to_float(b.at[k]), slope));
        b.at[k] = from_float<storage>(d * value * slope);
    }
}

// x: (rows, 2 cols). y: (rows, cols), n elements.
extern "C" __global__ void glu(storage* y, const storage* x, int gate, int cols, offset n) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    const Place at(mine, cols);
    Pack a = load_half(x, at);
    const Pack b = load_half(x + cols, at);
    switch (gate) {
        case SIGMOID: forward(a, b, Sigmoid()); break;
        case SILU: forward(a, b, SiLU()); break;
        case GELU: forward(a, b, ExactGELU()); break;
        case TANH_GELU: forward(a, b, TanhGELU()); break;
    }
    store(y, mine, a);
}

extern "C" __global__ void glu_backward(
    storage* dx, const storage* dy, const storage* x, int gate, int cols, offset n
) {
    const Part mine = my_part(n);
    if (!mine.count) return;
    const Place at(mine, cols);
    const Pack d = load(dy, mine);
    Pack a = load_half(x, at), b = load_half(x + cols, at);
    switch (gate) {
        case SIGMOID: backward(a, b, d, Sigmoid()); break;
        case SILU: backward(a, b, d, SiLU()); break;
        case GELU: backward(a, b, d, ExactGELU()); break;
        case TANH_GELU: backward(a, b, d, TanhGELU()); break;
    }
    store_half(dx, at, a);
    store_half(dx + cols, at, b);
}
