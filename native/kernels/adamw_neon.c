/* AdamW for AArch64 with its Advanced SIMD (NEON). */
#include "kernels.h"

#if WB_BUILD_NEON
#include "vector_neon.h"

#include "adamw_kernel.h"

void wb_adamw_neon(const wb_range *range, const wb_adamw_factors *factors)
{
    adamw_kernel(range, factors);
}

void wb_speculate_neon(const wb_range *range, const wb_adamw_factors *factors)
{
    speculate_kernel(range, factors);
}

void wb_undo_neon(const wb_range *range, const wb_adamw_factors *factors)
{
    undo_kernel(range, factors);
}
#else
typedef int wb_nothing_to_build_here;
#endif
