/* AdamW with both moments in 8 bits, in blocks of 256 elements with a scale for each moment.
 *
 * exp_avg is code * |code| * scale, code from -127 to 127: a signed square root. exp_avg_sq is code^2 * scale, code
 * from 1 to 255: its root is what the update divides by, and a code of 0 would make single parameters jump. A block's
 * scale makes its largest element the largest code, so it is known only when the block is updated; then the roots are
 * rounded to codes stochastically, one random number for both. To the nearest, both moments would stand still when
 * gradients fall.
 *
 * With registers enough (BLOCKS_UNDER_WAY 2), the moments of block k are updated in the same loop as block k - 1 is
 * finished: neither waits for the other, and the one's roots and the other's divisions fill each other's gaps.
 */
#ifndef WORKBENCH_COMPACT_KERNEL_H
#define WORKBENCH_COMPACT_KERNEL_H

/* Just below the largest codes: no element can round beyond them. */
#define EXP_AVG_CODES 126.9999f
#define EXP_AVG_SQ_CODES 254.9999f
/* A root beyond this (of a gradient whose square overflows) counts as this, and decays again. */
#define LARGEST_ROOT 0x1p60f

/* A block between its two halves of work, row by row: were each a long array, loads from one would wait for stores
 * to another whose addresses agree in their last 12 bits. */
typedef struct {
    struct {
        float exp_avg[ROW], exp_avg_root[ROW], root[ROW]; /* the roots of exp_avg's magnitude, and of exp_avg_sq */
    } rows[WB_BLOCK / ROW] __attribute__((aligned(64)));
} compact_scratch;

/* Two numbers for a whole block, in every element: what a squared code becomes in the new moments, the factors from
 * roots to codes, or the largest roots so far. */
typedef struct {
    vector exp_avg, exp_avg_sq;
} compact_pair;

/* New moments of a row from its old codes: exp_avg, and the root of exp_avg_sq. */
FUNCTION pending_row compact_new_moments(row gradient, const void *exp_avg_code, const void *exp_avg_sq_code,
                                         compact_pair decayed, const vector_factors *f, choices c)
{
    row exp_avg = load_int8_signed_square_shifted((const int8_t *)exp_avg_code, order_of(c));
    row root = load_uint8_square((const uint8_t *)exp_avg_sq_code, order_of(c));
#define HALF_ROW(half)                                                                                                 \
    do {                                                                                                               \
        exp_avg.half = v_fma(gradient.half, f->exp_avg_weight, v_mul(exp_avg.half, decayed.exp_avg));                  \
        vector weighted = v_mul(gradient.half, f->exp_avg_sq_weight);                                                  \
        root.half = v_sqrt(v_fma(weighted, weighted, v_mul(root.half, decayed.exp_avg_sq)));                           \
    } while (0)
    HALF_ROW(a);
    HALF_ROW(b);
#undef HALF_ROW
    return (pending_row){exp_avg, root};
}

/* The first half of a row's work: both moments decoded and updated, and their roots. */
FUNCTION compact_pair compact_moments_row(const wb_range *r, int64_t i, compact_scratch *scratch, int64_t at,
                                          compact_pair decayed, compact_pair largest, const vector_factors *f,
                                          choices c)
{
    pending_row next = compact_new_moments(load_gradient(r, i, c), (const int8_t *)r->exp_avg + i,
                                           (const uint8_t *)r->exp_avg_sq + i, decayed, f, c);
    row exp_avg_root = {v_sqrt(v_abs(next.exp_avg.a)), v_sqrt(v_abs(next.exp_avg.b))};
    largest.exp_avg = v_max(v_max(largest.exp_avg, exp_avg_root.a), exp_avg_root.b);
    largest.exp_avg_sq = v_max(v_max(largest.exp_avg_sq, next.root.a), next.root.b);
    store_float32(scratch->rows[at / ROW].exp_avg, next.exp_avg);
    store_float32(scratch->rows[at / ROW].exp_avg_root, exp_avg_root);
    store_float32(scratch->rows[at / ROW].root, next.root);
    return largest;
}

/* t >= 0 rounded stochastically; `dice` is from 0 to below 1. */
FUNCTION ivector rounded_code(vector root, vector factor, vector dice)
{
    return v_truncated(v_fma(root, factor, dice));
}

/* Codes of a row's moments. One random number serves both. */
FUNCTION void compact_store_codes(const wb_range *r, int64_t i, const compact_scratch *scratch, int64_t at,
                                  pending_row next, compact_pair factor, irow random, choices c)
{
    row exp_avg_root = load_float32(scratch->rows[at / ROW].exp_avg_root);
    irow exp_avg_code, root_code;
#define HALF_ROW(half)                                                                                                 \
    do {                                                                                                               \
        vector dice = v_unit_interval(random.half);                                                                    \
        exp_avg_code.half = rounded_code(exp_avg_root.half, factor.exp_avg, dice);                                     \
        exp_avg_code.half = i_with_sign_of(exp_avg_code.half, next.exp_avg.half);                                      \
        root_code.half = rounded_code(next.root.half, factor.exp_avg_sq, dice);                                        \
    } while (0)
    HALF_ROW(a);
    HALF_ROW(b);
#undef HALF_ROW
    store_int8((int8_t *)r->exp_avg + i, exp_avg_code, order_of(c));
    store_uint8_from_1((uint8_t *)r->exp_avg_sq + i, root_code, order_of(c));
}

/* The second half: the codes of the moments, and the parameters. */
FUNCTION void compact_finish_row(const wb_range *r, int64_t i, const compact_scratch *scratch, int64_t at,
                                 compact_pair factor, irow random, const vector_factors *f, choices c)
{
    pending_row next = {load_float32(scratch->rows[at / ROW].exp_avg), load_float32(scratch->rows[at / ROW].root)};
    compact_store_codes(r, i, scratch, at, next, factor, random, c);
    parameter_row(r, i, next, f, c);
}

/* The shift is that of load_int8_signed_square_shifted. */
FUNCTION compact_pair compact_decayed_scales(const wb_range *r, int64_t block, const wb_adamw_factors *factors)
{
    return (compact_pair){v_set(r->exp_avg_scale[block] * factors->beta1 * 0x1p-16f),
                          v_set(r->exp_avg_sq_scale[block] * factors->beta2)};
}

/* Stores the block's new scales and returns the factors that go with them. */
FUNCTION compact_pair compact_new_scales(const wb_range *r, int64_t block, compact_scratch *scratch,
                                         compact_pair largest)
{
    float exp_avg_root = v_largest(largest.exp_avg), root = v_largest(largest.exp_avg_sq);
    if (!(root <= LARGEST_ROOT)) {
        for (int i = 0; i < WB_BLOCK; i++)
            scratch->rows[i / ROW].root[i % ROW] = fminf(scratch->rows[i / ROW].root[i % ROW], LARGEST_ROOT);
        root = fminf(root, LARGEST_ROOT);
    }
    float exp_avg_inverse = exp_avg_root > 0 ? EXP_AVG_CODES / exp_avg_root : 0;
    float root_inverse = root > 0 ? EXP_AVG_SQ_CODES / root : 0;
    exp_avg_root *= 1 / EXP_AVG_CODES;
    root *= 1 / EXP_AVG_SQ_CODES;
    r->exp_avg_scale[block] = exp_avg_root * exp_avg_root;
    r->exp_avg_sq_scale[block] = root * root;
    return (compact_pair){v_set(exp_avg_inverse), v_set(root_inverse)};
}

FUNCTION void compact_end(const wb_range *r, int64_t block, irow random, const wb_adamw_factors *factors, choices c)
{
    const vector_factors spread_factors = spread(factors, c), *f = &spread_factors;
    const int64_t from = block * WB_BLOCK, rows_end = (r->count - from + ROW - 1) / ROW * ROW;
    padded_end end;
    take_end(&end, r, from, rows_end);
    end.range.exp_avg_scale += block;
    end.range.exp_avg_sq_scale += block;
    compact_scratch scratch;
    memset(&scratch, 0, sizeof scratch);
    const compact_pair decayed = compact_decayed_scales(&end.range, 0, factors);
    compact_pair largest = {v_set(0), v_set(0)};
    for (int64_t at = 0; at < rows_end; at += ROW)
        largest = compact_moments_row(&end.range, at, &scratch, at, decayed, largest, f, c);
    const compact_pair factor = compact_new_scales(&end.range, 0, &scratch, largest);
    for (int64_t at = 0; at < rows_end; at += ROW) {
        compact_finish_row(&end.range, at, &scratch, at, factor, random, f, c);
        random = next_random_row(random);
    }
    give_end(&end, r, from);
}

FUNCTION void compact_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const vector_factors f = spread(factors, c);
    const int64_t whole = range.count / WB_BLOCK;
    compact_scratch scratches[2];
    irow random = random_row(range.random_key, order_of(c));
    compact_pair factor = {v_set(0), v_set(0)};
    for (int64_t block = 0; block < whole; block++) {
        compact_scratch *scratch = &scratches[block & 1];
        const compact_scratch *before = &scratches[1 - (block & 1)];
        const int64_t start = block * WB_BLOCK;
        const compact_pair decayed = compact_decayed_scales(&range, block, factors);
        compact_pair largest = {v_set(0), v_set(0)};
        for (int64_t at = 0; at < WB_BLOCK; at += ROW) {
            prefetch_moments(&range, start + at, c);
            prefetch_parameter(&range, start + at, c);
            largest = compact_moments_row(&range, start + at, scratch, at, decayed, largest, &f, c);
            if (BLOCKS_UNDER_WAY == 2 && block > 0) {
                compact_finish_row(&range, start - WB_BLOCK + at, before, at, factor, random, &f, c);
                random = next_random_row(random);
            }
        }
        factor = compact_new_scales(&range, block, scratch, largest);
        for (int64_t at = 0; (BLOCKS_UNDER_WAY == 1 || block + 1 == whole) && at < WB_BLOCK; at += ROW) {
            compact_finish_row(&range, start + at, scratch, at, factor, random, &f, c);
            random = next_random_row(random);
        }
    }
    if (whole * WB_BLOCK < r->count)
        compact_end(r, whole, random, factors, c);
}

#endif
