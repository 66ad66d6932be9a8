/* What an instruction set has to offer: one table of functions for each, chosen once in dispatch.c.
 *
 * Invariant: every table gives the same bits. A kernel works on one thread, on any count, with the natural
 * alignment of its elements.
 */
#ifndef WORKBENCH_KERNELS_H
#define WORKBENCH_KERNELS_H

#include "native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define WB_BUILD_AVX2 1
#define WB_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#else
#define WB_BUILD_AVX2 0
#endif

/* The factors of one piece's update, each folded in double and rounded once. */
typedef struct {
    float gradient_scale;
    float exp_avg_weight;         /* 1 - beta1 */
    float beta2;
    float exp_avg_sq_weight;      /* 1 - beta2 */
    float decay_factor;           /* 1 - learning_rate * weight_decay */
    float bias_correction2_sqrt;  /* sqrt(1 - beta2^step) */
    float eps;
    float step_size;              /* -learning_rate / (1 - beta1^step) */
} wb_adamw_factors;

typedef struct {
    /* Updates the elements [begin, end) of a piece that has a gradient. */
    void (*adamw)(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors);
    /* The partial of at most WB_PARTIAL_ELEMENTS elements. */
    double (*sum_of_squares)(const void *values, int type, int64_t count);
    void (*accumulate)(float *destination, const void *source, int type, int64_t count, int overwrite);
    void (*split)(const float *source, uint16_t *high, int16_t *low, int64_t count);
    void (*join)(const uint16_t *high, const int16_t *low, float *destination, int64_t count);
} wb_kernels;

/* NULL where the CPU or the build lacks the instruction set. */
const wb_kernels *wb_kernels_for(int instruction_set);

void wb_adamw_scalar(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors);
double wb_sum_of_squares_scalar(const void *values, int type, int64_t count);
void wb_accumulate_scalar(float *destination, const void *source, int type, int64_t count, int overwrite);
void wb_split_scalar(const float *source, uint16_t *high, int16_t *low, int64_t count);
void wb_join_scalar(const uint16_t *high, const int16_t *low, float *destination, int64_t count);

#if WB_BUILD_AVX2
void wb_adamw_avx2(const wb_piece *piece, int64_t begin, int64_t end, const wb_adamw_factors *factors);
double wb_sum_of_squares_avx2(const void *values, int type, int64_t count);
void wb_accumulate_avx2(float *destination, const void *source, int type, int64_t count, int overwrite);
void wb_split_avx2(const float *source, uint16_t *high, int16_t *low, int64_t count);
void wb_join_avx2(const uint16_t *high, const int16_t *low, float *destination, int64_t count);
#endif

#endif
