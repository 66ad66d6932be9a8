/* AdamW for x86-64 with AVX2, FMA and F16C. */
#include "kernels.h"

#if WB_BUILD_X86
#include "vector_avx2.h"

#include "adamw_kernel.h"

WB_TARGET_AVX2 void wb_adamw_avx2(const wb_range *range, const wb_adamw_factors *factors)
{
    adamw_kernel(range, factors);
}

WB_TARGET_AVX2 void wb_speculate_avx2(const wb_range *range, const wb_adamw_factors *factors)
{
    speculate_kernel(range, factors);
}

WB_TARGET_AVX2 void wb_undo_avx2(const wb_range *range, const wb_adamw_factors *factors)
{
    undo_kernel(range, factors);
}
#else
typedef int wb_nothing_to_build_here;
#endif
