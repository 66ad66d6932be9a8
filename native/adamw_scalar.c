/* AdamW for any processor. Where fma is not an instruction, the C library computes it: slow, and the same bits. */
#include "adamw_kernel.h"

void wb_adamw_scalar(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors)
{
    adamw_kernel(piece, begin, end, factors);
}
