/* The sum of squares of at most 65,536 values, in float64.
 *
 * Invariant: value i goes to accumulator i % 32, and the accumulators are added in one fixed tree, so that the
 * result is the same bits in every instruction set and for any number of threads. A product of two float32 is
 * exact in float64, so it does not matter whether it is fused with the addition. The sum of finite values is
 * finite; infinity and NaN show in it.
 */
#include "kernels.h"
#include "numbers.h"

#if WB_BUILD_X86
#include <immintrin.h>
#endif

#define LANES 32

WB_INLINE double value_at(const void *values, int type, int64_t i)
{
    if (type == WB_FLOAT32)
        return ((const float *)values)[i];
    if (type == WB_BFLOAT16)
        return float_from_bfloat16(((const uint16_t *)values)[i]);
    return float_from_float16(((const uint16_t *)values)[i]);
}

WB_INLINE double added(double *lanes)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

WB_INLINE double sum_scalar(const void *values, int type, int64_t count)
{
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double value = value_at(values, type, i + lane);
            lanes[lane] += value * value;
        }
    for (; i < count; i++) {
        double value = value_at(values, type, i);
        lanes[i % LANES] += value * value;
    }
    return added(lanes);
}

double wb_sum_of_squares_scalar(const void *values, int type, int64_t count)
{
    if (type == WB_FLOAT32)
        return sum_scalar(values, WB_FLOAT32, count);
    if (type == WB_BFLOAT16)
        return sum_scalar(values, WB_BFLOAT16, count);
    return sum_scalar(values, WB_FLOAT16, count);
}

#if WB_BUILD_X86
#define VECTORS (LANES / 4)

/* Where 32 values lie as float32: in `values` itself, or converted into `buffer`. Loading four at a time from memory
 * widens them to float64 without a shuffle. */
WB_TARGET_AVX2 WB_INLINE const float *as_float32(const void *values, int type, int64_t i, float *buffer)
{
    if (type == WB_FLOAT32)
        return (const float *)values + i;
    for (int k = 0; k < LANES; k += 8) {
        __m128i bits = _mm_loadu_si128((const __m128i *)((const uint16_t *)values + i + k));
        __m256 eight = type == WB_BFLOAT16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                                           : _mm256_cvtph_ps(bits);
        _mm256_storeu_ps(buffer + k, eight);
    }
    return buffer;
}

WB_TARGET_AVX2 WB_INLINE double sum_avx2(const void *values, int type, int64_t count)
{
    float buffer[LANES];
    __m256d sums[VECTORS];
    for (int k = 0; k < VECTORS; k++)
        sums[k] = _mm256_setzero_pd();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const float *floats = as_float32(values, type, i, buffer);
        for (int k = 0; k < VECTORS; k++) {
            __m256d four = _mm256_cvtps_pd(_mm_loadu_ps(floats + 4 * k));
            sums[k] = _mm256_fmadd_pd(four, four, sums[k]);
        }
    }
    double lanes[LANES];
    for (int k = 0; k < VECTORS; k++)
        _mm256_storeu_pd(lanes + 4 * k, sums[k]);
    for (; i < count; i++) {
        double value = value_at(values, type, i);
        lanes[i % LANES] += value * value;
    }
    return added(lanes);
}

WB_TARGET_AVX2 double wb_sum_of_squares_avx2(const void *values, int type, int64_t count)
{
    if (type == WB_FLOAT32)
        return sum_avx2(values, WB_FLOAT32, count);
    if (type == WB_BFLOAT16)
        return sum_avx2(values, WB_BFLOAT16, count);
    return sum_avx2(values, WB_FLOAT16, count);
}

/* Memory is the limit already. */
double wb_sum_of_squares_avx512(const void *values, int type, int64_t count)
{
    return wb_sum_of_squares_avx2(values, type, count);
}
#endif
