/* A row of 16 elements as two vectors of 8, for x86-64 with AVX2, FMA and F16C. See vector_scalar.h for what each
 * function promises.
 *
 * In `LANE_ORDER` the first vector holds elements 0-3 and 8-11, as unpacking 16-bit values within 128-bit lanes
 * leaves them; packing restores the order in memory. `MEMORY_ORDER` costs one permutation more an array of narrow
 * values, and none an array of float32.
 */
#ifndef WORKBENCH_VECTOR_AVX2_H
#define WORKBENCH_VECTOR_AVX2_H

#include <immintrin.h>

#include <math.h>

#include "kernels.h"
#include "numbers.h"

#define FUNCTION WB_TARGET_AVX2 WB_INLINE
#define SEPARATE_FUNCTION WB_TARGET_AVX2 static __attribute__((noinline))
#define ROW 16
#define BLOCKS_UNDER_WAY 1

enum row_order { LANE_ORDER, MEMORY_ORDER };

typedef __m256 vector;
typedef __m256i ivector;
typedef struct { vector a, b; } row;
typedef struct { ivector a, b; } irow;

/* ---- Arithmetic on one vector ---- */

FUNCTION vector v_set(float x) { return _mm256_set1_ps(x); }
FUNCTION vector v_add(vector x, vector y) { return _mm256_add_ps(x, y); }
FUNCTION vector v_sub(vector x, vector y) { return _mm256_sub_ps(x, y); }
FUNCTION vector v_mul(vector x, vector y) { return _mm256_mul_ps(x, y); }
FUNCTION vector v_div(vector x, vector y) { return _mm256_div_ps(x, y); }
FUNCTION vector v_max(vector x, vector y) { return _mm256_max_ps(x, y); }
FUNCTION vector v_fma(vector x, vector y, vector z) { return _mm256_fmadd_ps(x, y, z); }
FUNCTION vector v_fnma(vector x, vector y, vector z) { return _mm256_fnmadd_ps(x, y, z); }
FUNCTION vector v_sqrt(vector x) { return _mm256_sqrt_ps(x); }
FUNCTION vector v_abs(vector x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
FUNCTION ivector v_bits(vector x) { return _mm256_castps_si256(x); }
FUNCTION ivector v_truncated(vector x) { return _mm256_cvttps_epi32(x); }
FUNCTION vector i_float(ivector x) { return _mm256_cvtepi32_ps(x); }

FUNCTION vector v_unit_interval(ivector random)
{
    ivector mantissa = _mm256_or_si256(_mm256_srli_epi32(random, 9), _mm256_set1_epi32(0x3f800000));
    return v_sub(_mm256_castsi256_ps(mantissa), v_set(1.0f));
}

FUNCTION ivector i_set(uint32_t x) { return _mm256_set1_epi32((int)x); }
FUNCTION ivector i_add(ivector x, ivector y) { return _mm256_add_epi32(x, y); }
FUNCTION ivector i_sub(ivector x, ivector y) { return _mm256_sub_epi32(x, y); }
FUNCTION ivector i_mul(ivector x, ivector y) { return _mm256_mullo_epi32(x, y); }
FUNCTION ivector i_or(ivector x, ivector y) { return _mm256_or_si256(x, y); }
FUNCTION ivector i_and(ivector x, ivector y) { return _mm256_and_si256(x, y); }
FUNCTION ivector i_left(ivector x, int bits) { return _mm256_slli_epi32(x, bits); }
FUNCTION ivector i_right(ivector x, int bits) { return _mm256_srli_epi32(x, bits); }
FUNCTION vector i_as_vector(ivector x) { return _mm256_castsi256_ps(x); }
FUNCTION ivector v_nan(vector x) { return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
FUNCTION int i_any(ivector x) { return !_mm256_testz_si256(x, x); }
FUNCTION ivector i_lower(ivector x) { return _mm256_and_si256(x, _mm256_set1_epi32(0xffff)); }
FUNCTION ivector i_upper(ivector x) { return _mm256_srli_epi32(x, 16); }

FUNCTION ivector i_with_sign_of(ivector x, vector sign)
{
    return _mm256_sign_epi32(x, _mm256_castps_si256(sign));
}

FUNCTION float v_largest(vector x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- Rows in memory ---- */

FUNCTION irow row_positions(enum row_order order)
{
    if (order == MEMORY_ORDER)
        return (irow){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                      _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
    return (irow){_mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11), _mm256_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15)};
}

/* Its own inverse. */
FUNCTION ivector reordered(ivector narrow, enum row_order order)
{
    return order == MEMORY_ORDER ? _mm256_permute4x64_epi64(narrow, 0xd8) : narrow;
}

/* 16 narrow values become the upper halves of 16 wide ones. */
FUNCTION irow widened(ivector narrow, ivector lower)
{
    return (irow){_mm256_unpacklo_epi16(lower, narrow), _mm256_unpackhi_epi16(lower, narrow)};
}

FUNCTION row as_floats(irow x)
{
    return (row){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}

FUNCTION row load_float32(const float *from)
{
    return (row){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

FUNCTION void store_float32(float *to, row x)
{
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
}

FUNCTION irow load_words(const uint32_t *from)
{
    return (irow){_mm256_loadu_si256((const __m256i *)(from)), _mm256_loadu_si256((const __m256i *)(from + 8))};
}

FUNCTION void stream_words(uint32_t *to, irow x)
{
    _mm256_stream_si256((__m256i *)(to), x.a);
    _mm256_stream_si256((__m256i *)(to + 8), x.b);
}

FUNCTION void stream_upper(uint16_t *to, irow x, enum row_order order)
{
    ivector narrow = _mm256_packus_epi32(i_upper(x.a), i_upper(x.b));
    _mm256_stream_si256((__m256i *)to, reordered(narrow, order));
}

FUNCTION void stream_uint8(uint8_t *to, irow x, enum row_order order)
{
    ivector narrow = reordered(_mm256_packs_epi32(x.a, x.b), order);
    ivector bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(narrow, narrow), 0x08);
    _mm_stream_si128((__m128i *)to, _mm256_castsi256_si128(bytes));
}

FUNCTION void stream_bytes(void *to, const void *from)
{
    _mm_stream_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
}

FUNCTION void end_stream(void) { _mm_sfence(); }

FUNCTION row load_bfloat16(const uint16_t *from, enum row_order order)
{
    ivector narrow = reordered(_mm256_loadu_si256((const __m256i *)from), order);
    return as_floats(widened(narrow, _mm256_setzero_si256()));
}

FUNCTION void store_upper(uint16_t *to, irow x, enum row_order order)
{
    ivector narrow = _mm256_packus_epi32(i_upper(x.a), i_upper(x.b));
    _mm256_storeu_si256((__m256i *)to, reordered(narrow, order));
}

FUNCTION row load_split(const uint16_t *high, const int16_t *low, enum row_order order)
{
    ivector lower = reordered(_mm256_loadu_si256((const __m256i *)low), order);
    ivector upper = reordered(_mm256_loadu_si256((const __m256i *)high), order);
    return as_floats(widened(_mm256_add_epi16(upper, _mm256_srai_epi16(lower, 15)), lower));
}

FUNCTION void store_split(uint16_t *high, int16_t *low, row x, enum row_order order)
{
    ivector a = v_bits(x.a), b = v_bits(x.b);
    ivector lower = _mm256_packus_epi32(i_lower(a), i_lower(b));
    ivector upper = _mm256_packus_epi32(i_upper(a), i_upper(b));
    upper = _mm256_sub_epi16(upper, _mm256_srai_epi16(lower, 15));
    _mm256_storeu_si256((__m256i *)low, reordered(lower, order));
    _mm256_storeu_si256((__m256i *)high, reordered(upper, order));
}

FUNCTION row load_int8_signed_square_shifted(const int8_t *from, enum row_order order)
{
    ivector narrow = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
    ivector square = reordered(_mm256_mullo_epi16(narrow, _mm256_abs_epi16(narrow)), order);
    irow wide = widened(square, _mm256_setzero_si256());
    return (row){i_float(wide.a), i_float(wide.b)};
}

FUNCTION irow load_uint8(const uint8_t *from, enum row_order order)
{
    ivector narrow = reordered(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from)), order);
    return (irow){_mm256_unpacklo_epi16(narrow, _mm256_setzero_si256()),
                  _mm256_unpackhi_epi16(narrow, _mm256_setzero_si256())};
}

FUNCTION row load_uint8_square(const uint8_t *from, enum row_order order)
{
    ivector narrow = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from));
    ivector square = reordered(_mm256_mullo_epi16(narrow, narrow), order);
    return (row){i_float(_mm256_unpacklo_epi16(square, _mm256_setzero_si256())),
                 i_float(_mm256_unpackhi_epi16(square, _mm256_setzero_si256()))};
}

FUNCTION void store_int8(int8_t *to, irow x, enum row_order order)
{
    ivector narrow = reordered(_mm256_packs_epi32(x.a, x.b), order);
    ivector bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(narrow, narrow), 0x08);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(bytes));
}

FUNCTION void store_uint8_from_1(uint8_t *to, irow x, enum row_order order)
{
    ivector narrow = reordered(_mm256_packs_epi32(x.a, x.b), order);
    ivector bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(narrow, narrow), 0x08);
    _mm_storeu_si128((__m128i *)to, _mm_max_epu8(_mm256_castsi256_si128(bytes), _mm_set1_epi8(1)));
}

#endif
