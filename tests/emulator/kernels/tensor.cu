// C[16, 8] = A[16, k] B[8, k]^T by mma.sync, one warp, registers filled by the layouts of the PTX manual.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define PRODUCT16(NAME, TYPE, PTX)                                                                                   \
    extern "C" __global__ void NAME(float* C, const TYPE* A, const TYPE* B) {                                        \
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;                                                          \
        const unsigned *a = (const unsigned*)A, *b = (const unsigned*)B;                                             \
        unsigned ra[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};               \
        unsigned rb[2] = {b[g * 8 + t], b[g * 8 + t + 4]};                                                           \
        float c[4] = {0.5f, 0.5f, 0.5f, 0.5f};                                                                       \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX "." PTX ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                \
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));                      \
        C[g * 8 + t * 2] = c[0]; C[g * 8 + t * 2 + 1] = c[1];                                                        \
        C[(g + 8) * 8 + t * 2] = c[2]; C[(g + 8) * 8 + t * 2 + 1] = c[3];                                            \
    }
PRODUCT16(product_half, __half, "f16")
PRODUCT16(product_bfloat16, __nv_bfloat16, "bf16")

extern "C" __global__ void product_tf32(float* C, const float* A, const float* B) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned a[4], b[2];
    const float fa[4] = {A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4]};
    const float fb[2] = {B[g * 8 + t], B[g * 8 + t + 4]};
    for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(a[i]) : "f"(fa[i]));
    for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(b[i]) : "f"(fb[i]));
    float c[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    C[g * 8 + t * 2] = c[0]; C[g * 8 + t * 2 + 1] = c[1];
    C[(g + 8) * 8 + t * 2] = c[2]; C[(g + 8) * 8 + t * 2 + 1] = c[3];
}

// The same through shared memory: cp.async, ldmatrix (B transposed on the way), mma.sync.
extern "C" __global__ void product_ldmatrix(float* C, const __half* A, const __half* B_rows) {
    __shared__ __align__(16) __half a_tile[16 * 24], b_tile[16 * 8];
    const int l = threadIdx.x, g = l / 4, t = l % 4;
    const unsigned pa = (unsigned)__cvta_generic_to_shared(a_tile + (l / 2) * 24 + (l % 2) * 8);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(pa), "l"(A + (l / 2) * 16 + (l % 2) * 8));
    if (l < 16) {
        const unsigned pb = (unsigned)__cvta_generic_to_shared(b_tile + l * 8);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(pb), "l"(B_rows + l * 8));
    }
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    __syncwarp();
    unsigned a[4], b[2];
    float c[4] = {0, 0, 0, 0};
    const unsigned qa = (unsigned)__cvta_generic_to_shared(a_tile + (l % 16) * 24 + (l / 16) * 8);
    const unsigned qb = (unsigned)__cvta_generic_to_shared(b_tile + (l % 16) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(qa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(qb));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    C[g * 8 + t * 2] = c[0]; C[g * 8 + t * 2 + 1] = c[1];
    C[(g + 8) * 8 + t * 2] = c[2]; C[(g + 8) * 8 + t * 2 + 1] = c[3];
}
