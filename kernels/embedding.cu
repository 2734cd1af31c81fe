// Rows of a table by id, and the gradient of the table, added in a fixed order without atomics.
//
// In storages an element of y: forward 2. Backward: dy is read once, each row of the gradient that an id names is read and
// written once.
#include "common.cuh"

// y[i] = table[ids[i]], one block per row. A bad id leaves a note and a row of zeros.
extern "C" __global__ void embedding(
    storage* y, long long* errors, const long long* ids, const storage* table, offset rows, offset size, int cols
) {
    const offset row = blockIdx.x;
    if (row >= rows) return;
    const long long id = ids[row];
    const bool good = id >= 0 && id < size;
    if (!good && threadIdx.x == 0) report_error(errors, BAD_ID, row, id, size);
    const bool aligned = cols % PACK == 0 && aligned16(y) && aligned16(table);
    y += row * cols;
    table += id * cols;
    for (int i = threadIdx.x * PACK; i < cols; i += blockDim.x * PACK)
        store_pack(y + i, load_pack(table + i, good ? cols - i : 0, aligned), cols - i, aligned);
}

// The gradient. `order` sorts the ids (stable), so the rows of one id, a run, lie side by side in it. A warp adds the rows
// of CHUNK places of the order one after the other, for 16 bytes of columns in each lane, whatever the lengths of the runs:
// no id is too frequent. A run within a chunk is added to the gradient at once. Of a run that goes on in the next chunk,
// each chunk leaves its sum in `partial`, and a second launch adds those.

constexpr int CHUNK = WARP;

// This thread's columns of `grad` row `id`, plus sum, rounded once.
__device__ __forceinline__ void add_to_row(
    storage* grad, long long id, const float* sum, int col, int left, int cols, bool aligned
) {
    storage* at = grad + id * cols + col;
    Pack p = load_pack(at, left, aligned);
#pragma unroll
    for (int k = 0; k < PACK; ++k) p.at[k] = from_float<storage>(to_float(p.at[k]) + sum[k]);
    store_pack(at, p, left, aligned);
}

// Block (32, warps), grid (chunks / warps, columns / (32 PACK)). partial: (chunks, 2, cols): the sum of a run that began
// before the chunk, and that of a run that begins in it and goes on. Ids outside 0 .. size - 1, and `skip`, add nothing.
extern "C" __global__ void embedding_backward(
    storage* grad, float* partial, const storage* dy, const long long* ids, const long long* order, long long skip,
    offset rows, offset size, int cols
) {
    const offset chunk = (offset)blockIdx.x * blockDim.y + threadIdx.y, begin = chunk * CHUNK;
    if (begin >= rows) return;
    const int lane = threadIdx.x, count = (int)min(rows - begin, (offset)CHUNK);
    const int col = (blockIdx.y * WARP + lane) * PACK, left = cols - col;  // lanes beyond the columns have left <= 0
    const bool aligned = cols % PACK == 0 && aligned16(dy) && aligned16(grad);
    partial += chunk * 2 * cols + col;

    // Each lane fetches one place of the order, so that the rows of dy can then be loaded without waiting for each other.
    const offset my_row = order[begin + min(lane, count - 1)];
    const long long my_id = ids[my_row];
    bool from_before = begin > 0 && ids[order[begin - 1]] == __shfl_sync(ALL_LANES, my_id, 0);
    const bool goes_over = begin + count < rows && ids[order[begin + count]] == __shfl_sync(ALL_LANES, my_id, count - 1);

    float sum[PACK] = {};
    for (int place = 0; place < count; ++place) {
        const offset row = __shfl_sync(ALL_LANES, my_row, place);
        const long long id = __shfl_sync(ALL_LANES, my_id, place);
        const bool inside = place + 1 < count;
        const bool goes_on = __shfl_sync(ALL_LANES, my_id, inside ? place + 1 : place) == id;
        const Pack p = load_pack(dy + row * cols + col, left, aligned);
#pragma unroll
        for (int k = 0; k < PACK; ++k) sum[k] += to_float(p.at[k]);
        if (inside && goes_on) continue;
        if (from_before || (!inside && goes_over)) {
            float* out = from_before ? partial : partial + cols;
#pragma unroll
            for (int k = 0; k < PACK; ++k)
                if (k < left) out[k] = sum[k];
        } else if (id >= 0 && id < size && id != skip) {
            add_to_row(grad, id, sum, col, left, cols, aligned);
        }
        from_before = false;
#pragma unroll
        for (int k = 0; k < PACK; ++k) sum[k] = 0.0f;
    }
}

// The runs that go over from one chunk to the next: the chunk in which a run begins adds what the later ones left.
extern "C" __global__ void embedding_backward_long_runs(
    storage* grad, const float* partial, const long long* ids, const long long* order, long long skip, offset rows,
    offset size, int cols
) {
    const offset chunk = (offset)blockIdx.x * blockDim.y + threadIdx.y;
    const offset begin = chunk * CHUNK, last = begin + CHUNK - 1;
    const int col = (blockIdx.y * WARP + threadIdx.x) * PACK, left = cols - col;
    if (last + 1 >= rows || left <= 0) return;
    const long long id = ids[order[last]];
    if (ids[order[last + 1]] != id || id < 0 || id >= size || id == skip) return;  // no run goes over
    if (begin > 0 && ids[order[begin - 1]] == id) return;                           // it began before this chunk
    float sum[PACK];
    partial += (chunk * 2 + 1) * cols + col;
    for (int k = 0; k < PACK; ++k) sum[k] = k < left ? partial[k] : 0.0f;
    for (offset next = last + 1; next < rows && ids[order[next]] == id; next += CHUNK) {
        partial += next == last + 1 ? cols : 2 * cols;
        for (int k = 0; k < PACK; ++k) sum[k] += k < left ? partial[k] : 0.0f;
    }
    add_to_row(grad, id, sum, col, left, cols, cols % PACK == 0 && aligned16(grad));
}
