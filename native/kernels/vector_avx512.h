/* A row of 32 elements as two vectors of 16, for x86-64 with AVX-512 F, BW, DQ and VL. See vector_scalar.h for what
 * each function promises, and vector_avx2.h for the two orders.
 */
#ifndef WORKBENCH_VECTOR_AVX512_H
#define WORKBENCH_VECTOR_AVX512_H

#include <immintrin.h>

#include <math.h>

#include "kernels.h"
#include "numbers.h"

#define FUNCTION WB_TARGET_AVX512 WB_INLINE
#define SEPARATE_FUNCTION WB_TARGET_AVX512 static __attribute__((noinline))
#define ROW 32
#define BLOCKS_UNDER_WAY 2

enum row_order { LANE_ORDER, MEMORY_ORDER };

typedef __m512 vector;
typedef __m512i ivector;
typedef struct { vector a, b; } row;
typedef struct { ivector a, b; } irow;

/* ---- Arithmetic on one vector ---- */

FUNCTION vector v_set(float x) { return _mm512_set1_ps(x); }
FUNCTION vector v_add(vector x, vector y) { return _mm512_add_ps(x, y); }
FUNCTION vector v_sub(vector x, vector y) { return _mm512_sub_ps(x, y); }
FUNCTION vector v_mul(vector x, vector y) { return _mm512_mul_ps(x, y); }
FUNCTION vector v_div(vector x, vector y) { return _mm512_div_ps(x, y); }
FUNCTION vector v_max(vector x, vector y) { return _mm512_max_ps(x, y); }
FUNCTION vector v_fma(vector x, vector y, vector z) { return _mm512_fmadd_ps(x, y, z); }
FUNCTION vector v_fnma(vector x, vector y, vector z) { return _mm512_fnmadd_ps(x, y, z); }
FUNCTION vector v_sqrt(vector x) { return _mm512_sqrt_ps(x); }
FUNCTION vector v_abs(vector x) { return _mm512_abs_ps(x); }
FUNCTION ivector v_bits(vector x) { return _mm512_castps_si512(x); }
FUNCTION ivector v_truncated(vector x) { return _mm512_cvttps_epi32(x); }
FUNCTION vector i_float(ivector x) { return _mm512_cvtepi32_ps(x); }

FUNCTION vector v_unit_interval(ivector random)
{
    ivector mantissa = _mm512_or_si512(_mm512_srli_epi32(random, 9), _mm512_set1_epi32(0x3f800000));
    return v_sub(_mm512_castsi512_ps(mantissa), v_set(1.0f));
}

FUNCTION ivector i_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
FUNCTION ivector i_add(ivector x, ivector y) { return _mm512_add_epi32(x, y); }
FUNCTION ivector i_sub(ivector x, ivector y) { return _mm512_sub_epi32(x, y); }
FUNCTION ivector i_mul(ivector x, ivector y) { return _mm512_mullo_epi32(x, y); }
FUNCTION ivector i_or(ivector x, ivector y) { return _mm512_or_si512(x, y); }
FUNCTION ivector i_and(ivector x, ivector y) { return _mm512_and_si512(x, y); }
FUNCTION ivector i_left(ivector x, unsigned bits) { return _mm512_slli_epi32(x, bits); }
FUNCTION ivector i_right(ivector x, unsigned bits) { return _mm512_srli_epi32(x, bits); }
FUNCTION vector i_as_vector(ivector x) { return _mm512_castsi512_ps(x); }
FUNCTION ivector v_nan(vector x) { return _mm512_movm_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)); }
FUNCTION int i_any(ivector x) { return _mm512_test_epi32_mask(x, x) != 0; }
FUNCTION ivector i_lower(ivector x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff)); }
FUNCTION ivector i_upper(ivector x) { return _mm512_srli_epi32(x, 16); }

FUNCTION ivector i_with_sign_of(ivector x, vector sign)
{
    __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(sign));
    return _mm512_mask_sub_epi32(x, negative, _mm512_setzero_si512(), x);
}

FUNCTION float v_largest(vector x) { return _mm512_reduce_max_ps(x); }

/* ---- Rows in memory ---- */

FUNCTION irow row_positions(enum row_order order)
{
    if (order == MEMORY_ORDER)
        return (irow){_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                      _mm512_setr_epi32(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)};
    return (irow){_mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                  _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)};
}

FUNCTION ivector before_widening(ivector narrow, enum row_order order)
{
    const ivector index = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    return order == MEMORY_ORDER ? _mm512_permutexvar_epi64(index, narrow) : narrow;
}

FUNCTION ivector after_narrowing(ivector narrow, enum row_order order)
{
    const ivector index = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return order == MEMORY_ORDER ? _mm512_permutexvar_epi64(index, narrow) : narrow;
}

/* 32 narrow values become the upper halves of 32 wide ones. */
FUNCTION irow widened(ivector narrow, ivector lower)
{
    return (irow){_mm512_unpacklo_epi16(lower, narrow), _mm512_unpackhi_epi16(lower, narrow)};
}

FUNCTION row as_floats(irow x)
{
    return (row){_mm512_castsi512_ps(x.a), _mm512_castsi512_ps(x.b)};
}

FUNCTION row load_float32(const float *from)
{
    return (row){_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)};
}

FUNCTION void store_float32(float *to, row x)
{
    _mm512_storeu_ps(to, x.a);
    _mm512_storeu_ps(to + 16, x.b);
}

FUNCTION irow load_words(const uint32_t *from)
{
    return (irow){_mm512_loadu_si512(from), _mm512_loadu_si512(from + 16)};
}

FUNCTION void stream_words(uint32_t *to, irow x)
{
    _mm512_stream_si512((__m512i *)(to), x.a);
    _mm512_stream_si512((__m512i *)(to + 16), x.b);
}

FUNCTION void stream_upper(uint16_t *to, irow x, enum row_order order)
{
    ivector narrow = _mm512_packus_epi32(i_upper(x.a), i_upper(x.b));
    _mm512_stream_si512((__m512i *)to, after_narrowing(narrow, order));
}

FUNCTION void stream_uint8(uint8_t *to, irow x, enum row_order order)
{
    ivector narrow = after_narrowing(_mm512_packs_epi32(x.a, x.b), order);
    _mm256_stream_si256((__m256i *)to, _mm512_cvtepi16_epi8(narrow));
}

FUNCTION void stream_bytes(void *to, const void *from)
{
    _mm256_stream_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
}

FUNCTION void end_stream(void) { _mm_sfence(); }

FUNCTION row load_bfloat16(const uint16_t *from, enum row_order order)
{
    ivector narrow = before_widening(_mm512_loadu_si512(from), order);
    return as_floats(widened(narrow, _mm512_setzero_si512()));
}

FUNCTION void store_upper(uint16_t *to, irow x, enum row_order order)
{
    ivector narrow = _mm512_packus_epi32(i_upper(x.a), i_upper(x.b));
    _mm512_storeu_si512(to, after_narrowing(narrow, order));
}

FUNCTION row load_split(const uint16_t *high, const int16_t *low, enum row_order order)
{
    ivector lower = before_widening(_mm512_loadu_si512(low), order);
    ivector upper = before_widening(_mm512_loadu_si512(high), order);
    return as_floats(widened(_mm512_add_epi16(upper, _mm512_srai_epi16(lower, 15)), lower));
}

FUNCTION void store_split(uint16_t *high, int16_t *low, row x, enum row_order order)
{
    ivector a = v_bits(x.a), b = v_bits(x.b);
    ivector lower = _mm512_packus_epi32(i_lower(a), i_lower(b));
    ivector upper = _mm512_packus_epi32(i_upper(a), i_upper(b));
    upper = _mm512_sub_epi16(upper, _mm512_srai_epi16(lower, 15));
    _mm512_storeu_si512(low, after_narrowing(lower, order));
    _mm512_storeu_si512(high, after_narrowing(upper, order));
}

FUNCTION row load_int8_signed_square_shifted(const int8_t *from, enum row_order order)
{
    ivector narrow = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
    ivector square = before_widening(_mm512_mullo_epi16(narrow, _mm512_abs_epi16(narrow)), order);
    irow wide = widened(square, _mm512_setzero_si512());
    return (row){i_float(wide.a), i_float(wide.b)};
}

FUNCTION irow load_uint8(const uint8_t *from, enum row_order order)
{
    ivector narrow = before_widening(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)from)), order);
    return (irow){_mm512_unpacklo_epi16(narrow, _mm512_setzero_si512()),
                  _mm512_unpackhi_epi16(narrow, _mm512_setzero_si512())};
}

FUNCTION row load_uint8_square(const uint8_t *from, enum row_order order)
{
    ivector narrow = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)from));
    ivector square = before_widening(_mm512_mullo_epi16(narrow, narrow), order);
    return (row){i_float(_mm512_unpacklo_epi16(square, _mm512_setzero_si512())),
                 i_float(_mm512_unpackhi_epi16(square, _mm512_setzero_si512()))};
}

FUNCTION void store_int8(int8_t *to, irow x, enum row_order order)
{
    ivector narrow = after_narrowing(_mm512_packs_epi32(x.a, x.b), order);
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(narrow));
}

FUNCTION void store_uint8_from_1(uint8_t *to, irow x, enum row_order order)
{
    ivector narrow = after_narrowing(_mm512_packs_epi32(x.a, x.b), order);
    __m256i bytes = _mm512_cvtepi16_epi8(narrow);
    _mm256_storeu_si256((__m256i *)to, _mm256_max_epu8(bytes, _mm256_set1_epi8(1)));
}

#endif
