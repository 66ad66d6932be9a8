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
/* The processor's own prefetching stops at the end of each page; asking this far ahead carries it over. */
#define PREFETCH_BYTES 4096

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
/* 16-bit values converted at a time; they stay in the innermost cache. */
#define CONVERTED 512

/* Adds the squares of `count` values, a multiple of 32. Loading four at a time from memory widens them to float64
 * without a shuffle. */
WB_TARGET_AVX2 WB_INLINE void add_squares(__m256d *sums, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES)
        for (int k = 0; k < VECTORS; k++) {
            __m256d four = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 4 * k));
            sums[k] = _mm256_fmadd_pd(four, four, sums[k]);
        }
}

WB_TARGET_AVX2 WB_INLINE void convert(float *destination, const uint16_t *values, int type, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        _mm_prefetch((const char *)(values + i) + PREFETCH_BYTES, _MM_HINT_T0);
        for (int k = 0; k < LANES; k += 8) {
            __m128i bits = _mm_loadu_si128((const __m128i *)(values + i + k));
            __m256 eight = type == WB_BFLOAT16
                               ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                               : _mm256_cvtph_ps(bits);
            _mm256_storeu_ps(destination + i + k, eight);
        }
    }
}

WB_TARGET_AVX2 WB_INLINE double sum_avx2(const void *values, int type, int64_t count)
{
    const int64_t whole = count / LANES * LANES;
    __m256d sums[VECTORS];
    for (int k = 0; k < VECTORS; k++)
        sums[k] = _mm256_setzero_pd();
    if (type == WB_FLOAT32)
        add_squares(sums, values, whole);
    else
        for (int64_t i = 0; i < whole; i += CONVERTED) {
            float converted[CONVERTED];
            const int64_t length = whole - i < CONVERTED ? whole - i : CONVERTED;
            convert(converted, (const uint16_t *)values + i, type, length);
            add_squares(sums, converted, length);
        }
    double lanes[LANES];
    for (int k = 0; k < VECTORS; k++)
        _mm256_storeu_pd(lanes + 4 * k, sums[k]);
    for (int64_t i = whole; i < count; i++) {
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

#define WIDE_VECTORS (LANES / 8)

WB_TARGET_AVX512 WB_INLINE double sum_avx512(const void *values, int type, int64_t count)
{
    const int64_t whole = count / LANES * LANES;
    __m512d sums[WIDE_VECTORS];
    for (int k = 0; k < WIDE_VECTORS; k++)
        sums[k] = _mm512_setzero_pd();
    for (int64_t i = 0; i < whole; i += LANES) {
        _mm_prefetch((const char *)values + i * (type == WB_FLOAT32 ? 4 : 2) + PREFETCH_BYTES, _MM_HINT_T0);
        for (int k = 0; k < WIDE_VECTORS; k++) {
            __m256 eight;
            if (type == WB_FLOAT32) {
                eight = _mm256_loadu_ps((const float *)values + i + 8 * k);
            } else {
                __m128i bits = _mm_loadu_si128((const __m128i *)((const uint16_t *)values + i + 8 * k));
                eight = type == WB_BFLOAT16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                                            : _mm256_cvtph_ps(bits);
            }
            __m512d wide = _mm512_cvtps_pd(eight);
            sums[k] = _mm512_fmadd_pd(wide, wide, sums[k]);
        }
    }
    double lanes[LANES];
    for (int k = 0; k < WIDE_VECTORS; k++)
        _mm512_storeu_pd(lanes + 8 * k, sums[k]);
    for (int64_t i = whole; i < count; i++) {
        double value = value_at(values, type, i);
        lanes[i % LANES] += value * value;
    }
    return added(lanes);
}

WB_TARGET_AVX512 double wb_sum_of_squares_avx512(const void *values, int type, int64_t count)
{
    if (type == WB_FLOAT32)
        return sum_avx512(values, WB_FLOAT32, count);
    if (type == WB_BFLOAT16)
        return sum_avx512(values, WB_BFLOAT16, count);
    return sum_avx512(values, WB_FLOAT16, count);
}
#endif
