// y = a b, and y = a + b with b repeated for each row of a. In storages an element: 3, and 2 where b is short.
#include "map.cuh"

extern "C" __global__ void multiply(storage* y, const storage* a, const storage* b, offset n) {
    map(y, a, b, n, [](float a, float b) { return a * b; });
}

// b: (cols,), such as a bias for each row, or positions for each sample.
extern "C" __global__ void add(storage* y, const storage* a, const storage* b, int cols, offset n) {
    map_rows(y, a, b, cols, n, [](float a, float b) { return a + b; });
}
