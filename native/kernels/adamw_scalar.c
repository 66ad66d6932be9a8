/* AdamW for any processor. Where fma is not an instruction, the C library computes it: slow, and the same bits. */
#include "vector_scalar.h"

#include "adamw_kernel.h"

void wb_adamw_scalar(const wb_range *range, const wb_adamw_factors *factors)
{
    adamw_kernel(range, factors);
}

void wb_speculate_scalar(const wb_range *range, const wb_adamw_factors *factors)
{
    speculate_kernel(range, factors);
}

void wb_undo_scalar(const wb_range *range, const wb_adamw_factors *factors)
{
    undo_kernel(range, factors);
}
