/* AdamW for x86-64 with AVX-512 F, BW, DQ and VL. */
#include "kernels.h"

#if WB_BUILD_X86
#include "vector_avx512.h"

#include "adamw_kernel.h"

WB_TARGET_AVX512 void wb_adamw_avx512(const wb_range *range, const wb_adamw_factors *factors)
{
    adamw_kernel(range, factors);
}

WB_TARGET_AVX512 void wb_speculate_avx512(const wb_range *range, const wb_adamw_factors *factors)
{
    speculate_kernel(range, factors);
}

WB_TARGET_AVX512 void wb_undo_avx512(const wb_range *range, const wb_adamw_factors *factors)
{
    undo_kernel(range, factors);
}
#else
typedef int wb_nothing_to_build_here;
#endif
