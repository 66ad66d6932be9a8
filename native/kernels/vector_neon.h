/* A row of 8 elements as two vectors of 4, for AArch64 with its Advanced SIMD (NEON). See vector_scalar.h for what each
 * function promises. Narrow values are widened in the order of memory at no cost, so both orders are that one.
 */
#ifndef WORKBENCH_VECTOR_NEON_H
#define WORKBENCH_VECTOR_NEON_H

#include <arm_neon.h>

#include <math.h>

#include "kernels.h"
#include "numbers.h"

#define FUNCTION WB_INLINE
#define SEPARATE_FUNCTION static __attribute__((noinline))
#define ROW 8
#define BLOCKS_UNDER_WAY 2

enum row_order { LANE_ORDER, MEMORY_ORDER };

typedef float32x4_t vector;
typedef uint32x4_t ivector;
typedef struct { vector a, b; } row;
typedef struct { ivector a, b; } irow;

/* ---- Arithmetic on one vector ---- */

FUNCTION ivector i_set(uint32_t x) { return vdupq_n_u32(x); }
FUNCTION ivector i_add(ivector x, ivector y) { return vaddq_u32(x, y); }
FUNCTION ivector i_sub(ivector x, ivector y) { return vsubq_u32(x, y); }
FUNCTION ivector i_mul(ivector x, ivector y) { return vmulq_u32(x, y); }
FUNCTION ivector i_or(ivector x, ivector y) { return vorrq_u32(x, y); }
FUNCTION ivector i_and(ivector x, ivector y) { return vandq_u32(x, y); }
/* As operators: the intrinsics take only a number that is written there. */
FUNCTION ivector i_left(ivector x, int bits) { return x << bits; }
FUNCTION ivector i_right(ivector x, int bits) { return x >> bits; }
FUNCTION vector i_as_vector(ivector x) { return vreinterpretq_f32_u32(x); }
FUNCTION int i_any(ivector x) { return vmaxvq_u32(x) != 0; }
FUNCTION ivector i_lower(ivector x) { return vandq_u32(x, vdupq_n_u32(0xffff)); }
FUNCTION ivector i_upper(ivector x) { return vshrq_n_u32(x, 16); }

FUNCTION vector v_set(float x) { return vdupq_n_f32(x); }
FUNCTION vector v_add(vector x, vector y) { return vaddq_f32(x, y); }
FUNCTION vector v_sub(vector x, vector y) { return vsubq_f32(x, y); }
FUNCTION vector v_mul(vector x, vector y) { return vmulq_f32(x, y); }
FUNCTION vector v_div(vector x, vector y) { return vdivq_f32(x, y); }
FUNCTION vector v_max(vector x, vector y) { return vmaxq_f32(x, y); }
FUNCTION vector v_fma(vector x, vector y, vector z) { return vfmaq_f32(z, x, y); }
FUNCTION vector v_fnma(vector x, vector y, vector z) { return vfmsq_f32(z, x, y); }
FUNCTION vector v_sqrt(vector x) { return vsqrtq_f32(x); }
FUNCTION vector v_abs(vector x) { return vabsq_f32(x); }
FUNCTION ivector v_bits(vector x) { return vreinterpretq_u32_f32(x); }
FUNCTION ivector v_truncated(vector x) { return vreinterpretq_u32_s32(vcvtq_s32_f32(x)); }
FUNCTION ivector v_nan(vector x) { return vmvnq_u32(vceqq_f32(x, x)); }

FUNCTION vector v_unit_interval(ivector random)
{
    return v_sub(i_as_vector(i_or(i_right(random, 9), i_set(0x3f800000))), v_set(1.0f));
}

FUNCTION ivector i_with_sign_of(ivector x, vector sign)
{
    ivector negative = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(sign), 31));
    return i_sub(veorq_u32(x, negative), negative);
}

FUNCTION float v_largest(vector x) { return vmaxvq_f32(x); }

/* ---- Rows in memory ---- */

FUNCTION irow row_positions(enum row_order order)
{
    (void)order;
    return (irow){{0, 1, 2, 3}, {4, 5, 6, 7}};
}

/* 8 narrow values become the upper halves of 8 wide ones; and back. */
FUNCTION row widened(uint16x8_t upper, uint16x8_t lower)
{
    return (row){vreinterpretq_f32_u16(vzip1q_u16(lower, upper)), vreinterpretq_f32_u16(vzip2q_u16(lower, upper))};
}

FUNCTION uint16x8_t upper_halves(irow x)
{
    return vuzp2q_u16(vreinterpretq_u16_u32(x.a), vreinterpretq_u16_u32(x.b));
}

FUNCTION uint16x8_t lower_halves(irow x)
{
    return vuzp1q_u16(vreinterpretq_u16_u32(x.a), vreinterpretq_u16_u32(x.b));
}

FUNCTION row load_float32(const float *from)
{
    return (row){vld1q_f32(from), vld1q_f32(from + 4)};
}

FUNCTION void store_float32(float *to, row x)
{
    vst1q_f32(to, x.a);
    vst1q_f32(to + 4, x.b);
}

FUNCTION irow load_words(const uint32_t *from)
{
    return (irow){vld1q_u32(from), vld1q_u32(from + 4)};
}

FUNCTION void stream_words(uint32_t *to, irow x)
{
    vst1q_u32(to, x.a);
    vst1q_u32(to + 4, x.b);
}

FUNCTION void stream_upper(uint16_t *to, irow x, enum row_order order)
{
    (void)order;
    vst1q_u16(to, upper_halves(x));
}

FUNCTION void stream_uint8(uint8_t *to, irow x, enum row_order order)
{
    (void)order;
    vst1_u8(to, vmovn_u16(lower_halves(x)));
}

FUNCTION void stream_bytes(void *to, const void *from)
{
    vst1_u8(to, vld1_u8(from));
}

FUNCTION void end_stream(void) { }

FUNCTION row load_bfloat16(const uint16_t *from, enum row_order order)
{
    (void)order;
    return widened(vld1q_u16(from), vdupq_n_u16(0));
}

FUNCTION void store_upper(uint16_t *to, irow x, enum row_order order)
{
    (void)order;
    vst1q_u16(to, upper_halves(x));
}

/* The sign of the lower half is what rounding has added to the upper one. */
FUNCTION row load_split(const uint16_t *high, const int16_t *low, enum row_order order)
{
    (void)order;
    uint16x8_t lower = vreinterpretq_u16_s16(vld1q_s16(low));
    return widened(vsubq_u16(vld1q_u16(high), vshrq_n_u16(lower, 15)), lower);
}

FUNCTION void store_split(uint16_t *high, int16_t *low, row x, enum row_order order)
{
    (void)order;
    irow bits = {v_bits(x.a), v_bits(x.b)};
    uint16x8_t lower = lower_halves(bits);
    vst1q_s16(low, vreinterpretq_s16_u16(lower));
    vst1q_u16(high, vsraq_n_u16(upper_halves(bits), lower, 15));
}

FUNCTION row load_int8_signed_square_shifted(const int8_t *from, enum row_order order)
{
    (void)order;
    int16x8_t narrow = vmovl_s8(vld1_s8(from));
    int16x8_t square = vmulq_s16(narrow, vabsq_s16(narrow));
    row wide = widened(vreinterpretq_u16_s16(square), vdupq_n_u16(0));
    return (row){vcvtq_f32_s32(vreinterpretq_s32_f32(wide.a)), vcvtq_f32_s32(vreinterpretq_s32_f32(wide.b))};
}

FUNCTION irow load_uint8(const uint8_t *from, enum row_order order)
{
    (void)order;
    uint16x8_t narrow = vmovl_u8(vld1_u8(from));
    return (irow){vmovl_u16(vget_low_u16(narrow)), vmovl_high_u16(narrow)};
}

FUNCTION row load_uint8_square(const uint8_t *from, enum row_order order)
{
    (void)order;
    uint8x8_t narrow = vld1_u8(from);
    uint16x8_t square = vmull_u8(narrow, narrow);
    return (row){vcvtq_f32_u32(vmovl_u16(vget_low_u16(square))), vcvtq_f32_u32(vmovl_high_u16(square))};
}

FUNCTION void store_int8(int8_t *to, irow x, enum row_order order)
{
    (void)order;
    vst1_s8(to, vreinterpret_s8_u8(vmovn_u16(lower_halves(x))));
}

FUNCTION void store_uint8_from_1(uint8_t *to, irow x, enum row_order order)
{
    (void)order;
    int16x8_t narrow = vqmovn_high_s32(vqmovn_s32(vreinterpretq_s32_u32(x.a)), vreinterpretq_s32_u32(x.b));
    vst1_u8(to, vmax_u8(vqmovun_s16(narrow), vdup_n_u8(1)));
}

#endif
