/* Elementwise conversions: accumulate into float32, split a master, join it. Each loop is written once and
 * compiled for every instruction set. */
#include "kernels.h"
#include "numbers.h"

WB_INLINE void accumulate_loop(float *restrict destination, const void *restrict source, int type, int64_t count,
                               int overwrite)
{
    const float *source32 = source;
    const uint16_t *source16 = source;
    for (int64_t i = 0; i < count; i++) {
        float value;
        if (type == WB_FLOAT32)
            value = source32[i];
        else if (type == WB_BFLOAT16)
            value = float_from_bfloat16(source16[i]);
        else
            value = float_from_float16(source16[i]);
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

void wb_accumulate_scalar(float *destination, const void *source, int type, int64_t count, int overwrite)
{
    accumulate(destination, source, type, count, overwrite);
}

void wb_split_scalar(const float *source, uint16_t *high, int16_t *low, int64_t count)
{
    split(source, high, low, count);
}

void wb_join_scalar(const uint16_t *high, const int16_t *low, float *destination, int64_t count)
{
    join(high, low, destination, count);
}

#if WB_BUILD_AVX2
WB_TARGET_AVX2 void wb_accumulate_avx2(float *destination, const void *source, int type, int64_t count,
                                       int overwrite)
{
    accumulate(destination, source, type, count, overwrite);
}

WB_TARGET_AVX2 void wb_split_avx2(const float *source, uint16_t *high, int16_t *low, int64_t count)
{
    split(source, high, low, count);
}

WB_TARGET_AVX2 void wb_join_avx2(const uint16_t *high, const int16_t *low, float *destination, int64_t count)
{
    join(high, low, destination, count);
}
#endif
