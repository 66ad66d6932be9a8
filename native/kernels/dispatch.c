/* Which instruction sets this processor and this build have, and the functions of each. */
#include <stddef.h>

#include "kernels.h"

#define TABLE(updates, suffix)                                                                                         \
    {                                                                                                                  \
        .adamw = wb_adamw_##updates, .speculate = wb_speculate_##updates, .undo = wb_undo_##updates,                   \
        .prepare = wb_prepare_##suffix, .sum_of_squares = wb_sum_of_squares_##suffix,                                  \
        .accumulate = wb_accumulate_##suffix, .narrow = wb_narrow_##suffix, .upper_half = wb_upper_half_##suffix,      \
        .split = wb_split_##suffix, .join = wb_join_##suffix,                                                          \
    }

static const wb_kernels scalar_kernels = TABLE(scalar, scalar);

#if WB_BUILD_X86
#include <cpuid.h>

static const wb_kernels avx2_kernels = TABLE(avx2, avx2);
static const wb_kernels avx512_kernels = TABLE(avx512, avx512);

/* The compiler's run-time asks cpuid once per process, and whether the operating system saves the wide registers.
 * Only the newest compilers know the name "f16c", which is a bit of cpuid's first page. */
static int processor_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int processor_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c();
}

static int processor_has_avx512(void)
{
    return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#if WB_BUILD_NEON
/* NEON is in every AArch64 processor: nobody has to be asked, and compilers make it of scalar's loops in convert.c and
 * reduce.c. SVE is not in every one: its functions would have a target attribute, and HWCAP_SVE of getauxval(AT_HWCAP)
 * would be asked for here. */
static const wb_kernels neon_kernels = TABLE(neon, scalar);
#endif

const wb_kernels *wb_kernels_for(int instruction_set)
{
    if (instruction_set == WB_SCALAR)
        return &scalar_kernels;
#if WB_BUILD_X86
    if (instruction_set == WB_AVX2 && processor_has_avx2())
        return &avx2_kernels;
    if (instruction_set == WB_AVX512 && processor_has_avx512())
        return &avx512_kernels;
#endif
#if WB_BUILD_NEON
    if (instruction_set == WB_NEON)
        return &neon_kernels;
#endif
    return NULL;
}

int wb_has_instruction_set(int instruction_set)
{
    return wb_kernels_for(instruction_set) != NULL;
}
