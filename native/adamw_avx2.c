/* AdamW for x86-64 with AVX2, FMA and F16C: the compiler makes eight lanes of the loop in adamw_kernel.h. */
#include "adamw_kernel.h"

#if WB_BUILD_AVX2
WB_TARGET_AVX2 void wb_adamw_avx2(const wb_piece *piece, int64_t begin, int64_t end,
                                  const wb_adamw_factors *factors)
{
    adamw_kernel(piece, begin, end, factors);
}
#else
typedef int wb_nothing_to_build_here;
#endif
