/* AdamW with decoupled decay (Loshchilov and Hutter, 2019), in one pass: gradient scaled, moments, parameter, and
 * the master split or the working weights emitted.
 *
 * The formula is written once, here; adamw_scalar.c and adamw_avx2.c compile it for their instruction set. It
 * follows torch.optim.AdamW(foreach=False) operation by operation, and uses fma exactly where torch's CPU kernels
 * do on a processor that has it: in lerp and in addcmul, not in addcdiv. Exchanging any two operations here
 * changes bits. What is left between the two is the square root: here it is rounded correctly, in a torch built with
 * MKL it is not always, so that parameters may differ in their last places while both moments are equal.
 */
#ifndef WORKBENCH_ADAMW_KERNEL_H
#define WORKBENCH_ADAMW_KERNEL_H

#include <math.h>

#include "kernels.h"
#include "numbers.h"

enum master_kind { MASTER_PLAIN, MASTER_EMITTING, MASTER_SPLIT };

/* `type` and `kind` are constants where this is inlined, so that each combination is a loop of its own. */
WB_INLINE void adamw_loop(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors,
                          int type, enum master_kind kind)
{
    const float *restrict gradient32 = (const float *)piece->gradient;
    const uint16_t *restrict gradient16 = (const uint16_t *)piece->gradient;
    float *restrict master = (float *)piece->master;
    uint16_t *restrict high = (uint16_t *)piece->high;
    int16_t *restrict low = (int16_t *)piece->low;
    uint16_t *restrict emit = (uint16_t *)piece->emit;
    float *restrict exp_avg = (float *)piece->exp_avg;
    float *restrict exp_avg_sq = (float *)piece->exp_avg_sq;

    const float scale = factors->gradient_scale;
    const float beta2 = factors->beta2;
    const float exp_avg_sq_weight = factors->exp_avg_sq_weight;
    const float decay_factor = factors->decay_factor;
    const float bias_correction2_sqrt = factors->bias_correction2_sqrt;
    const float eps = factors->eps;
    const float step_size = factors->step_size;
    /* torch's lerp starts from the nearer end. */
    const int from_gradient = !(factors->exp_avg_weight < 0.5f);
    const float weight = from_gradient ? factors->exp_avg_weight - 1.0f : factors->exp_avg_weight;

    for (int64_t i = begin; i < end; i++) {
        float g;
        if (type == WB_FLOAT32)
            g = gradient32[i];
        else if (type == WB_BFLOAT16)
            g = float_from_bfloat16(gradient16[i]);
        else
            g = float_from_float16(gradient16[i]);
        g *= scale;

        float m = exp_avg[i];
        m = fmaf(weight, g - m, from_gradient ? g : m);
        float v = fmaf(exp_avg_sq_weight * g, g, exp_avg_sq[i] * beta2);
        float p = kind == MASTER_SPLIT ? joined(high[i], low[i]) : master[i];
        p = p * decay_factor + step_size * m / (sqrtf(v) / bias_correction2_sqrt + eps);

        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        if (kind == MASTER_SPLIT) {
            high[i] = split_high(p);
            low[i] = split_low(p);
        } else {
            master[i] = p;
            if (kind == MASTER_EMITTING)
                emit[i] = split_high(p);
        }
    }
}

WB_INLINE void adamw_for_type(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors,
                              int type)
{
    if (!piece->master)
        adamw_loop(piece, begin, end, factors, type, MASTER_SPLIT);
    else if (piece->emit)
        adamw_loop(piece, begin, end, factors, type, MASTER_EMITTING);
    else
        adamw_loop(piece, begin, end, factors, type, MASTER_PLAIN);
}

WB_INLINE void adamw_kernel(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors)
{
    if (piece->gradient_type == WB_FLOAT32)
        adamw_for_type(piece, begin, end, factors, WB_FLOAT32);
    else if (piece->gradient_type == WB_BFLOAT16)
        adamw_for_type(piece, begin, end, factors, WB_BFLOAT16);
    else
        adamw_for_type(piece, begin, end, factors, WB_FLOAT16);
}

#endif
