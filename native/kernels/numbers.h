/* One element at a time: 16-bit types widened, the split of a float32 master and its inverse.
 *
 * The functions have no branches, so that a loop over them becomes vector code in whatever instruction set the
 * function around it is compiled for. That is how every instruction set gives the same bits.
 */
#ifndef WORKBENCH_NUMBERS_H
#define WORKBENCH_NUMBERS_H

#include <stdint.h>
#include <string.h>

#define WB_INLINE static inline __attribute__((always_inline))

WB_INLINE float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

WB_INLINE uint32_t bits_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

WB_INLINE float float_from_bfloat16(uint16_t bits)
{
    return float_from_bits((uint32_t)bits << 16);
}

/* Exact: float16's exponent is moved into place by a multiplication, which also normalises its denormals. */
WB_INLINE float float_from_float16(uint16_t bits)
{
    uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t magnitude = bits_from_float(float_from_bits(shifted) * 0x1p112f);
    uint32_t not_finite = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    return float_from_bits(magnitude | not_finite | (uint32_t)(bits & 0x8000) << 16);
}

/* The float16 nearest to a float32, ties to even; infinity beyond the largest. A NaN stays one. */
WB_INLINE uint16_t float16_from_float(float value)
{
    uint32_t bits = bits_from_float(value), magnitude = bits & 0x7fffffffu;
    /* Exponent moved, mantissa rounded: a carry out of the mantissa is the next exponent, and then infinity. */
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    /* Below 2^-14 the addition's own rounding leaves the bits of a denormal in the last places of 0.5. */
    uint32_t tiny = bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u ? tiny : magnitude < 0x47800000u ? normal : large;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* The bfloat16 nearest to a float32, ties to even. A NaN stays one. */
WB_INLINE uint16_t bfloat16_from_float(float value)
{
    uint32_t bits = bits_from_float(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded);
}

/* The bfloat16 nearest to a float32, ties away from zero. All arithmetic is modulo 2^32, so that
 * joined(split_high(x), split_low(x)) is x for each of the 2^32 bit patterns. The high half alone is the working
 * weight: beyond bfloat16's largest value it is infinity, as in any rounding; a NaN with all upper mantissa bits
 * set (which arithmetic does not produce) reads as zero in it. */
WB_INLINE uint16_t split_high(float value)
{
    return (uint16_t)((bits_from_float(value) + 0x8000u) >> 16);
}

WB_INLINE int16_t split_low(float value)
{
    return (int16_t)(uint16_t)bits_from_float(value);
}

WB_INLINE float joined(uint16_t high, int16_t low)
{
    return float_from_bits(((uint32_t)high << 16) + (uint32_t)(int32_t)low);
}

#endif
