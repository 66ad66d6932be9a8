/* Elementwise conversions: gradients to float32, summed or prepared for an update; float32 to 16 bits; a master split
 * and joined. Each loop is written once and compiled to vector code for every instruction set. */
#include <math.h>

#include "kernels.h"
#include "numbers.h"

WB_INLINE float widened(const void *values, int type, int64_t i)
{
    if (type == WB_FLOAT32)
        return ((const float *)values)[i];
    if (type == WB_BFLOAT16)
        return float_from_bfloat16(((const uint16_t *)values)[i]);
    return float_from_float16(((const uint16_t *)values)[i]);
}

WB_INLINE void accumulate_loop(float *restrict destination, const void *restrict source, int type, int64_t count,
                               int overwrite)
{
    for (int64_t i = 0; i < count; i++) {
        float value = widened(source, type, i);
        destination[i] = overwrite ? value : destination[i] + value;
    }
}

WB_INLINE void accumulate(float *destination, const void *source, int type, int64_t count, int overwrite)
{
    if (type == WB_FLOAT32 && overwrite)
        memcpy(destination, source, (size_t)count * sizeof(float));
    else if (type == WB_FLOAT32)
        accumulate_loop(destination, source, WB_FLOAT32, count, 0);
    else if (type == WB_BFLOAT16 && overwrite)
        accumulate_loop(destination, source, WB_BFLOAT16, count, 1);
    else if (type == WB_BFLOAT16)
        accumulate_loop(destination, source, WB_BFLOAT16, count, 0);
    else if (overwrite)
        accumulate_loop(destination, source, WB_FLOAT16, count, 1);
    else
        accumulate_loop(destination, source, WB_FLOAT16, count, 0);
}

WB_INLINE void prepare_loop(float *restrict destination, const void *restrict gradient, int type, float scale,
                            float decay, const float *restrict master, const uint16_t *restrict high,
                            const int16_t *restrict low, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float value = widened(gradient, type, i) * scale;
        if (decay != 0.0f)
            value = fmaf(decay, master ? master[i] : joined(high[i], low[i]), value);
        destination[i] = value;
    }
}

WB_INLINE void prepare(float *destination, const void *gradient, int type, float scale, float decay,
                       const float *master, const uint16_t *high, const int16_t *low, int64_t count)
{
    if (type == WB_FLOAT32)
        prepare_loop(destination, gradient, WB_FLOAT32, scale, decay, master, high, low, count);
    else if (type == WB_BFLOAT16)
        prepare_loop(destination, gradient, WB_BFLOAT16, scale, decay, master, high, low, count);
    else
        prepare_loop(destination, gradient, WB_FLOAT16, scale, decay, master, high, low, count);
}

WB_INLINE void narrow(uint16_t *restrict destination, int type, const float *restrict source, int64_t count)
{
    if (type == WB_BFLOAT16)
        for (int64_t i = 0; i < count; i++)
            destination[i] = bfloat16_from_float(source[i]);
    else
        for (int64_t i = 0; i < count; i++)
            destination[i] = float16_from_float(source[i]);
}

WB_INLINE void upper_half(uint16_t *restrict high, const float *restrict source, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        high[i] = split_high(source[i]);
}

WB_INLINE void split(const float *restrict source, uint16_t *restrict high, int16_t *restrict low, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        high[i] = split_high(source[i]);
        low[i] = split_low(source[i]);
    }
}

WB_INLINE void join(const uint16_t *restrict high, const int16_t *restrict low, float *restrict destination,
                    int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        destination[i] = joined(high[i], low[i]);
}

#define DEFINE(suffix, target)                                                                                         \
    target void wb_prepare_##suffix(float *destination, const void *gradient, int type, float scale, float decay,      \
                                    const float *master, const uint16_t *high, const int16_t *low, int64_t count)      \
    {                                                                                                                  \
        prepare(destination, gradient, type, scale, decay, master, high, low, count);                                  \
    }                                                                                                                  \
    target void wb_accumulate_##suffix(float *destination, const void *source, int type, int64_t count, int overwrite) \
    {                                                                                                                  \
        accumulate(destination, source, type, count, overwrite);                                                       \
    }                                                                                                                  \
    target void wb_narrow_##suffix(uint16_t *destination, int type, const float *source, int64_t count)                \
    {                                                                                                                  \
        narrow(destination, type, source, count);                                                                      \
    }                                                                                                                  \
    target void wb_upper_half_##suffix(uint16_t *high, const float *source, int64_t count)                             \
    {                                                                                                                  \
        upper_half(high, source, count);                                                                               \
    }                                                                                                                  \
    target void wb_split_##suffix(const float *source, uint16_t *high, int16_t *low, int64_t count)                    \
    {                                                                                                                  \
        split(source, high, low, count);                                                                               \
    }                                                                                                                  \
    target void wb_join_##suffix(const uint16_t *high, const int16_t *low, float *destination, int64_t count)          \
    {                                                                                                                  \
        join(high, low, destination, count);                                                                           \
    }

DEFINE(scalar, )
#if WB_BUILD_X86
DEFINE(avx2, WB_TARGET_AVX2)
DEFINE(avx512, WB_TARGET_AVX512)
#endif
