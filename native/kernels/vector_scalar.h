/* A row of elements as two vectors: what the kernels are written in, here for any processor, one element a vector.
 *
 * vector_neon.h, vector_avx2.h and vector_avx512.h define the same names for 4, 8 and 16 elements a vector. Each
 * kernel's C file includes one of the four. Every function is exact, or rounded to nearest as IEEE 754 has it, so that
 * all four give the same bits.
 */
#ifndef WORKBENCH_VECTOR_SCALAR_H
#define WORKBENCH_VECTOR_SCALAR_H

#include <math.h>
#include <stdlib.h>

#include "kernels.h"
#include "numbers.h"

#define FUNCTION WB_INLINE
#define SEPARATE_FUNCTION static __attribute__((noinline))
#define ROW 2 /* elements */
/* Of compact state: 2 is faster where there are 32 registers, 1 where there are 16. */
#define BLOCKS_UNDER_WAY 1

/* Which element of a row lies where in its vectors. It must be one and the same for all arrays of a loop; rows of
 * float32 are always loaded in `MEMORY_ORDER`. */
enum row_order { LANE_ORDER, MEMORY_ORDER };

typedef float vector;
typedef uint32_t ivector;
typedef struct { vector a, b; } row;
typedef struct { ivector a, b; } irow;

/* ---- Arithmetic on one vector ---- */

FUNCTION vector v_set(float x) { return x; }
FUNCTION vector v_add(vector x, vector y) { return x + y; }
FUNCTION vector v_sub(vector x, vector y) { return x - y; }
FUNCTION vector v_mul(vector x, vector y) { return x * y; }
FUNCTION vector v_div(vector x, vector y) { return x / y; }
/* Either of them where one is a NaN. */
FUNCTION vector v_max(vector x, vector y) { return x > y ? x : y; }
FUNCTION vector v_fma(vector x, vector y, vector z) { return fmaf(x, y, z); }
/* z - x * y */
FUNCTION vector v_fnma(vector x, vector y, vector z) { return fmaf(-x, y, z); }
FUNCTION vector v_sqrt(vector x) { return sqrtf(x); }
FUNCTION vector v_abs(vector x) { return fabsf(x); }
FUNCTION ivector v_bits(vector x) { return bits_from_float(x); }
/* Toward zero; `x` is above -2^31. What is not below 2^31 (a NaN is not) becomes 2^31, as x86's instructions have it;
 * AArch64's make 2^31 - 1 of it, and 0 of a NaN. C leaves the conversion of such a number undefined. */
FUNCTION ivector v_truncated(vector x) { return x < 0x1p31f ? (ivector)(int32_t)x : 0x80000000u; }
/* From 0 to below 1: the upper 23 bits of `random`. */
FUNCTION vector v_unit_interval(ivector random) { return float_from_bits(random >> 9 | 0x3f800000) - 1.0f; }
FUNCTION ivector i_set(uint32_t x) { return x; }
FUNCTION ivector i_add(ivector x, ivector y) { return x + y; }
FUNCTION ivector i_sub(ivector x, ivector y) { return x - y; }
FUNCTION ivector i_mul(ivector x, ivector y) { return x * y; }
FUNCTION ivector i_or(ivector x, ivector y) { return x | y; }
FUNCTION ivector i_and(ivector x, ivector y) { return x & y; }
FUNCTION ivector i_left(ivector x, int bits) { return x << bits; }
FUNCTION ivector i_right(ivector x, int bits) { return x >> bits; }
FUNCTION vector i_as_vector(ivector x) { return float_from_bits(x); }
/* All bits of an element that is a NaN, none of another. */
FUNCTION ivector v_nan(vector x) { return x == x ? 0 : 0xffffffffu; }
/* Whether any element is not 0. */
FUNCTION int i_any(ivector x) { return x != 0; }
/* The lower and the upper 16 bits. */
FUNCTION ivector i_lower(ivector x) { return x & 0xffff; }
FUNCTION ivector i_upper(ivector x) { return x >> 16; }
/* x or -x; `x` is 0 where `sign` is. */
FUNCTION ivector i_with_sign_of(ivector x, vector sign) { return bits_from_float(sign) >> 31 ? 0u - x : x; }
/* The largest element; none is a NaN. */
FUNCTION float v_largest(vector x) { return x; }

/* ---- Rows in memory ---- */

/* Where in the row each element lies. */
FUNCTION irow row_positions(enum row_order order)
{
    (void)order;
    return (irow){0, 1};
}

FUNCTION row load_float32(const float *from)
{
    return (row){from[0], from[1]};
}

FUNCTION void store_float32(float *to, row x)
{
    to[0] = x.a;
    to[1] = x.b;
}

FUNCTION irow load_words(const uint32_t *from)
{
    return (irow){from[0], from[1]};
}

/* Past the caches where the processor can; `to` begins at a whole row. */
FUNCTION void stream_words(uint32_t *to, irow x)
{
    to[0] = x.a;
    to[1] = x.b;
}

/* As store_upper, store_uint8_from_1 without its 1, and a copy of a row of bytes. */
FUNCTION void stream_upper(uint16_t *to, irow x, enum row_order order)
{
    (void)order;
    to[0] = (uint16_t)i_upper(x.a);
    to[1] = (uint16_t)i_upper(x.b);
}

FUNCTION void stream_uint8(uint8_t *to, irow x, enum row_order order)
{
    (void)order;
    to[0] = (uint8_t)x.a;
    to[1] = (uint8_t)x.b;
}

FUNCTION void stream_bytes(void *to, const void *from)
{
    memcpy(to, from, ROW);
}

/* Other threads see what was streamed before. */
FUNCTION void end_stream(void) {}

FUNCTION row load_bfloat16(const uint16_t *from, enum row_order order)
{
    (void)order;
    return (row){float_from_bfloat16(from[0]), float_from_bfloat16(from[1])};
}

/* The upper 16 bits of each element. */
FUNCTION void store_upper(uint16_t *to, irow x, enum row_order order)
{
    (void)order;
    to[0] = (uint16_t)i_upper(x.a);
    to[1] = (uint16_t)i_upper(x.b);
}

FUNCTION row load_split(const uint16_t *high, const int16_t *low, enum row_order order)
{
    (void)order;
    return (row){joined(high[0], low[0]), joined(high[1], low[1])};
}

FUNCTION void store_split(uint16_t *high, int16_t *low, row x, enum row_order order)
{
    (void)order;
    high[0] = split_high(x.a);
    high[1] = split_high(x.b);
    low[0] = split_low(x.a);
    low[1] = split_low(x.b);
}

/* 2^16 * code * |code|, for codes from -127 to 127: that is how it leaves the widening. */
FUNCTION row load_int8_signed_square_shifted(const int8_t *from, enum row_order order)
{
    (void)order;
    return (row){(float)(from[0] * abs(from[0])) * 0x1p16f, (float)(from[1] * abs(from[1])) * 0x1p16f};
}

FUNCTION irow load_uint8(const uint8_t *from, enum row_order order)
{
    (void)order;
    return (irow){from[0], from[1]};
}

FUNCTION row load_uint8_square(const uint8_t *from, enum row_order order)
{
    (void)order;
    return (row){(float)(from[0] * from[0]), (float)(from[1] * from[1])};
}

/* Elements from -127 to 127. */
FUNCTION void store_int8(int8_t *to, irow x, enum row_order order)
{
    (void)order;
    to[0] = (int8_t)(int32_t)x.a;
    to[1] = (int8_t)(int32_t)x.b;
}

/* Elements from 0 to 255; 0 is stored as 1, and so is what v_truncated makes of a NaN. */
FUNCTION void store_uint8_from_1(uint8_t *to, irow x, enum row_order order)
{
    (void)order;
    to[0] = (uint8_t)(x.a - 1 < 255 ? x.a : 1);
    to[1] = (uint8_t)(x.b - 1 < 255 ? x.b : 1);
}

#endif
