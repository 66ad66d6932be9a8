/* Which instruction sets this processor and this build have, and the functions of each. */
#include <stddef.h>

#include "kernels.h"

static const wb_kernels scalar_kernels = {
    wb_adamw_scalar, wb_sum_of_squares_scalar, wb_accumulate_scalar, wb_split_scalar, wb_join_scalar,
};

#if WB_BUILD_AVX2
static const wb_kernels avx2_kernels = {
    wb_adamw_avx2, wb_sum_of_squares_avx2, wb_accumulate_avx2, wb_split_avx2, wb_join_avx2,
};

/* The compiler's run-time asks cpuid once per process, and whether the operating system saves the wide registers. */
static int processor_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#endif

const wb_kernels *wb_kernels_for(int instruction_set)
{
    if (instruction_set == WB_SCALAR)
        return &scalar_kernels;
#if WB_BUILD_AVX2
    if (instruction_set == WB_AVX2 && processor_has_avx2())
        return &avx2_kernels;
#endif
    return NULL;
}

int wb_has_instruction_set(int instruction_set)
{
    return wb_kernels_for(instruction_set) != NULL;
}
