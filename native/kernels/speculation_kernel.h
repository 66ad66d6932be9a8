/* AdamW ahead of the verdict on its gradients, and the exact inverse. Formats `exact` and `half`; `compact` is in
 * compact_speculation_kernel.h.
 *
 * From the new moments, the gradient and the formula, the old state follows up to its roundings. The kernel predicts it,
 * and stores by how much the prediction is wrong, as a difference of bits (modulo 2^32):
 *
 *   exact   a word: 16 bits of exp_avg, 8 of exp_avg_sq, 8 of the parameter
 *   half    16 bits: the sign of exp_avg, 4 of exp_avg_sq, 11 of exp_avg; and 8 of the parameter. What stochastic rounding
 *           has taken of the new moments is more than many an exp_avg, so that of its sign and of all but 4 bits of its
 *           exponent nothing can be told: those are stored. The change of the parameter is that of the moments before
 *           rounding, which are computed again from the old ones.
 *
 * Where that does not fit (a moment that was nearly nothing beside its gradient), the element's old state is
 * stored as it was; where there is no room for that either, the kernel stops before it, and says how far it has come.
 *
 * A row's state is stored when all of its residues are known, so that nothing is ever half done. Speculation and undo
 * predict by the same operations on the same numbers.
 */
#ifndef WORKBENCH_SPECULATION_KERNEL_H
#define WORKBENCH_SPECULATION_KERNEL_H

typedef struct {
    vector exp_avg, exp_avg_sq, parameter;
} inverse_factors;

FUNCTION inverse_factors inverse_of(const wb_adamw_factors *f)
{
    return (inverse_factors){v_set(1.0f / (1.0f - f->exp_avg_weight)), v_set(1.0f / f->beta2),
                             v_set(1.0f / f->decay_factor)};
}

/* ---- Predictions of the old state, as bits ---- */

/* Of exact moments; `gradient` is scaled. */
FUNCTION ivector old_exp_avg(vector exp_avg, vector gradient, const vector_factors *f, const inverse_factors *back)
{
    return v_bits(v_mul(v_fnma(f->exp_avg_weight, gradient, exp_avg), back->exp_avg));
}

FUNCTION ivector old_exp_avg_sq(vector exp_avg_sq, vector gradient, const vector_factors *f,
                                const inverse_factors *back)
{
    vector weighted = v_mul(f->exp_avg_sq_weight, gradient);
    return v_bits(v_mul(v_fnma(weighted, gradient, exp_avg_sq), back->exp_avg_sq));
}

/* Of half's, by what was stored of the new ones: bits that those of the old magnitude are below, by as little as fits. */
#define HALF_EXP_AVG_BITS 0x87ff0000u
#define HALF_EXP_AVG_SQ_BITS 0x78000000u

FUNCTION ivector top_exp_avg(ivector stored, vector gradient, const vector_factors *f)
{
    vector old = v_fnma(gradient, f->exp_avg_weight, i_as_vector(stored));
    return i_add(v_bits(v_abs(old)), i_set(5u << 23));
}

FUNCTION ivector top_exp_avg_sq(ivector stored, vector gradient, const vector_factors *f, const inverse_factors *back)
{
    vector weighted = v_mul(gradient, f->exp_avg_sq_weight);
    vector old = v_mul(v_fnma(weighted, weighted, i_as_vector(stored)), back->exp_avg_sq);
    return i_add(v_bits(old), i_set(8u << 16));
}

/* `change`: of the parameter. */
FUNCTION ivector old_parameter(vector parameter, vector change, const inverse_factors *back)
{
    return v_bits(v_mul(v_sub(parameter, change), back->parameter));
}

/* The difference of two words of bits, so that what lies within half of `range` around 0 comes to be from 0 on. */
FUNCTION ivector residue(vector old, ivector prediction, uint32_t range)
{
    return i_add(i_sub(v_bits(old), prediction), i_set(range / 2));
}

/* ---- Ahead ---- */

/* A vector of a row, updated but not stored: `exp_avg` and `exp_avg_sq` as bits, of which half stores the upper 16, and
 * of `words` too. `misfit` is not 0 in elements whose residues do not fit. */
typedef struct {
    ivector exp_avg, exp_avg_sq;
    vector parameter;
    ivector words, bytes, misfit;
} speculated;

FUNCTION speculated speculated_exact(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter,
                                     const vector_factors *f, const inverse_factors *back, choices c)
{
    vector new_avg = new_exp_avg(exp_avg, gradient, f, c), new_sq = new_exp_avg_sq(exp_avg_sq, gradient, f, c);
    vector change = change_of(new_avg, v_sqrt(new_sq), f, c);
    speculated next = {.exp_avg = v_bits(new_avg), .exp_avg_sq = v_bits(new_sq)};
    next.parameter = v_add(v_mul(parameter, f->decay_factor), change);
    gradient = v_mul(gradient, f->gradient_scale);
    ivector first = residue(exp_avg, old_exp_avg(new_avg, gradient, f, back), 1 << 16);
    ivector second = residue(exp_avg_sq, old_exp_avg_sq(new_sq, gradient, f, back), 1 << 8);
    ivector third = residue(parameter, old_parameter(next.parameter, change, back), 1 << 8);
    next.words = i_or(i_or(first, i_left(second, 16)), i_left(third, 24));
    next.misfit = i_or(i_right(first, 16), i_right(i_or(second, third), 8));
    return next;
}

FUNCTION speculated speculated_half(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter,
                                    ivector random, const vector_factors *f, const inverse_factors *back, choices c)
{
    const ivector upper = i_set(0xffff0000u);
    vector new_avg = new_exp_avg(exp_avg, gradient, f, c), new_sq = new_exp_avg_sq(exp_avg_sq, gradient, f, c);
    vector change = change_of(new_avg, v_sqrt(new_sq), f, c);
    speculated next = {.exp_avg = i_add(v_bits(new_avg), i_lower(random)),
                       .exp_avg_sq = i_add(v_bits(new_sq), i_upper(random))};
    next.parameter = v_fma(parameter, f->decay_factor, change);
    /* The sign of exp_avg turns the difference's uppermost bit. */
    ivector first = i_sub(top_exp_avg(i_and(next.exp_avg, upper), gradient, f), v_bits(exp_avg));
    ivector second = i_sub(top_exp_avg_sq(i_and(next.exp_avg_sq, upper), gradient, f, back), v_bits(exp_avg_sq));
    next.bytes = residue(parameter, old_parameter(next.parameter, change, back), 1 << 8);
    next.words = i_or(first, i_and(i_left(second, 11), i_set(HALF_EXP_AVG_SQ_BITS)));
    next.misfit = i_or(i_and(first, i_set(HALF_EXP_AVG_SQ_BITS)), i_or(i_right(second, 20), i_right(next.bytes, 8)));
    return next;
}

FUNCTION speculated speculated_vector(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter,
                                      ivector random, const vector_factors *f, const inverse_factors *back, choices c)
{
    speculated next = c.format == WB_EXACT
                          ? speculated_exact(gradient, exp_avg, exp_avg_sq, parameter, f, back, c)
                          : speculated_half(gradient, exp_avg, exp_avg_sq, parameter, random, f, back, c);
    /* A NaN anywhere makes one of the new parameter; which NaN a prediction is then, no standard promises. */
    next.misfit = i_or(next.misfit, v_nan(next.parameter));
    return next;
}

FUNCTION uint32_t parameter_bits(const wb_range *r, int64_t i)
{
    return bits_from_float(r->master ? r->master[i] : joined(r->high[i], r->low[i]));
}

/* Keeps the old state of the misfits among the `count` elements of a row, which lies at `i` of the range and at `at` of
 * the record; returns 0, and keeps none, where there is no room for all. */
SEPARATE_FUNCTION int keep_misfits(const wb_range *r, int64_t i, int64_t at, int64_t count, irow misfits,
                                   enum row_order order)
{
    uint32_t misfit[ROW] __attribute__((aligned(64))), place[ROW] __attribute__((aligned(64)));
    stream_words(misfit, misfits);
    stream_words(place, row_positions(order));
    wb_record *record = r->record;
    uint32_t escapes = record->escapes;
    for (int64_t n = 0; n < ROW; n++) {
        if (!misfit[n] || place[n] >= count)
            continue;
        if (escapes == WB_ESCAPES)
            return 0;
        const int64_t element = i + place[n];
        record->old[escapes].element = (uint32_t)at + place[n];
        if (r->state_format == WB_EXACT) {
            record->old[escapes].exp_avg = ((const uint32_t *)r->exp_avg)[element];
            record->old[escapes].exp_avg_sq = ((const uint32_t *)r->exp_avg_sq)[element];
        } else if (r->state_format == WB_HALF) {
            record->old[escapes].exp_avg = ((const uint16_t *)r->exp_avg)[element];
            record->old[escapes].exp_avg_sq = ((const uint16_t *)r->exp_avg_sq)[element];
        }
        record->old[escapes].master = parameter_bits(r, element);
        escapes++;
    }
    record->escapes = escapes;
    return 1;
}

FUNCTION void store_moment_bits(void *moments, int64_t i, ivector a, ivector b, choices c)
{
    if (c.format == WB_EXACT)
        store_float32((float *)moments + i, (row){i_as_vector(a), i_as_vector(b)});
    else
        store_upper((uint16_t *)moments + i, (irow){a, b}, order_of(c));
}

/* Updates a row, which lies at `i` of the range and at `at` of the record; returns whether it could be stored. */
FUNCTION int speculated_row(const wb_range *r, int64_t i, int64_t at, int64_t count, irow random,
                            const vector_factors *f, const inverse_factors *back, choices c)
{
    row gradient = load_gradient(r, i, c), parameter = load_parameter(r, i, c);
    row exp_avg = load_moment(r->exp_avg, i, c), exp_avg_sq = load_moment(r->exp_avg_sq, i, c);
    speculated a = speculated_vector(gradient.a, exp_avg.a, exp_avg_sq.a, parameter.a, random.a, f, back, c);
    speculated b = speculated_vector(gradient.b, exp_avg.b, exp_avg_sq.b, parameter.b, random.b, f, back, c);
    if (__builtin_expect(i_any(i_or(a.misfit, b.misfit)), 0) &&
        !keep_misfits(r, i, at, count, (irow){a.misfit, b.misfit}, order_of(c)))
        return 0;
    store_moment_bits(r->exp_avg, i, a.exp_avg, b.exp_avg, c);
    store_moment_bits(r->exp_avg_sq, i, a.exp_avg_sq, b.exp_avg_sq, c);
    store_parameter(r, i, (row){a.parameter, b.parameter}, c);
    if (c.format == WB_EXACT) {
        wb_exact_residues *residues = (wb_exact_residues *)(void *)r->record->residues;
        stream_words(residues->words + at, (irow){a.words, b.words});
    } else {
        wb_half_residues *residues = (wb_half_residues *)(void *)r->record->residues;
        stream_upper(residues->moments + at, (irow){a.words, b.words}, order_of(c));
        stream_uint8(residues->parameter + at, (irow){a.bytes, b.bytes}, order_of(c));
    }
    return 1;
}

FUNCTION int64_t speculated_rows(const wb_range *r, const vector_factors *f, const inverse_factors *back, choices c)
{
    const wb_range range = *r;
    const int64_t whole = range.count / ROW * ROW;
    irow random = random_row(range.random_key, order_of(c));
    for (int64_t i = 0; i < whole; i += ROW) {
        prefetch_moments(&range, i, c);
        prefetch_parameter(&range, i, c);
        if (!speculated_row(&range, i, i, ROW, random, f, back, c))
            return i;
        random = next_random_row(random);
    }
    if (whole < range.count) {
        padded_end end;
        take_end(&end, r, whole, ROW);
        if (!speculated_row(&end.range, 0, whole, range.count - whole, random, f, back, c))
            return whole;
        give_end(&end, r, whole);
    }
    return range.count;
}

FUNCTION void speculate_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const vector_factors f = spread(factors, c);
    const inverse_factors back = inverse_of(factors);
    r->record->escapes = 0;
    r->record->done = (uint32_t)speculated_rows(r, &f, &back, c);
    end_stream();
}

/* ---- Back ---- */

typedef struct {
    vector exp_avg, exp_avg_sq, parameter;
} old_state;

FUNCTION vector with_residue(ivector prediction, ivector residue, uint32_t range)
{
    return i_as_vector(i_sub(i_add(prediction, residue), i_set(range / 2)));
}

FUNCTION old_state undone_exact(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter, ivector words,
                                const vector_factors *f, const inverse_factors *back, choices c)
{
    vector change = change_of(exp_avg, v_sqrt(exp_avg_sq), f, c);
    gradient = v_mul(gradient, f->gradient_scale);
    return (old_state){
        with_residue(old_exp_avg(exp_avg, gradient, f, back), i_lower(words), 1 << 16),
        with_residue(old_exp_avg_sq(exp_avg_sq, gradient, f, back), i_right(i_left(words, 8), 24), 1 << 8),
        with_residue(old_parameter(parameter, change, back), i_right(words, 24), 1 << 8),
    };
}

/* `words`: residues in their upper 16 bits. What the lower ones of the difference were, the prediction says: those of an
 * old moment are 0. */
FUNCTION old_state undone_half(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter, ivector words,
                               ivector bytes, const vector_factors *f, const inverse_factors *back, choices c)
{
    const ivector upper = i_set(0xffff0000u);
    ivector first = i_and(top_exp_avg(v_bits(exp_avg), gradient, f), upper);
    ivector second = i_and(top_exp_avg_sq(v_bits(exp_avg_sq), gradient, f, back), upper);
    old_state old = {
        .exp_avg = i_as_vector(i_sub(first, i_and(words, i_set(HALF_EXP_AVG_BITS)))),
        .exp_avg_sq = i_as_vector(i_sub(second, i_right(i_and(words, i_set(HALF_EXP_AVG_SQ_BITS)), 11))),
    };
    vector new_avg = new_exp_avg(old.exp_avg, gradient, f, c), new_sq = new_exp_avg_sq(old.exp_avg_sq, gradient, f, c);
    vector change = change_of(new_avg, v_sqrt(new_sq), f, c);
    old.parameter = with_residue(old_parameter(parameter, change, back), bytes, 1 << 8);
    return old;
}

/* `i` of the range is `at` of the record. */
FUNCTION void undo_row(const wb_range *r, int64_t i, int64_t at, const vector_factors *f, const inverse_factors *back,
                       choices c)
{
    row gradient = load_gradient(r, i, c), parameter = load_parameter(r, i, c);
    row exp_avg = load_moment(r->exp_avg, i, c), exp_avg_sq = load_moment(r->exp_avg_sq, i, c);
    old_state a, b;
    if (c.format == WB_EXACT) {
        const wb_exact_residues *residues = (const wb_exact_residues *)(const void *)r->record->residues;
        irow words = load_words(residues->words + at);
        a = undone_exact(gradient.a, exp_avg.a, exp_avg_sq.a, parameter.a, words.a, f, back, c);
        b = undone_exact(gradient.b, exp_avg.b, exp_avg_sq.b, parameter.b, words.b, f, back, c);
    } else {
        const wb_half_residues *residues = (const wb_half_residues *)(const void *)r->record->residues;
        row words = load_bfloat16(residues->moments + at, order_of(c));
        irow bytes = load_uint8(residues->parameter + at, order_of(c));
        a = undone_half(gradient.a, exp_avg.a, exp_avg_sq.a, parameter.a, v_bits(words.a), bytes.a, f, back, c);
        b = undone_half(gradient.b, exp_avg.b, exp_avg_sq.b, parameter.b, v_bits(words.b), bytes.b, f, back, c);
    }
    store_moment_bits(r->exp_avg, i, v_bits(a.exp_avg), v_bits(b.exp_avg), c);
    store_moment_bits(r->exp_avg_sq, i, v_bits(a.exp_avg_sq), v_bits(b.exp_avg_sq), c);
    store_parameter(r, i, (row){a.parameter, b.parameter}, c);
}

FUNCTION void prefetch_residues(const wb_range *r, int64_t i, choices c)
{
    if (c.format == WB_EXACT) {
        prefetch_row(r->record->residues, i, 4);
    } else {
        prefetch_row(r->record->residues, i, 2);
        prefetch_row(((const wb_half_residues *)(const void *)r->record->residues)->parameter, i, 1);
    }
}

/* Gives the elements that were kept whole, from `first` of the record's on, their old state. */
SEPARATE_FUNCTION void give_back_misfits(const wb_range *r, uint32_t first)
{
    const wb_record *record = r->record;
    for (uint32_t n = first; n < record->escapes; n++) {
        const int64_t i = record->old[n].element;
        const float parameter = float_from_bits(record->old[n].master);
        if (r->state_format == WB_EXACT) {
            ((uint32_t *)r->exp_avg)[i] = record->old[n].exp_avg;
            ((uint32_t *)r->exp_avg_sq)[i] = record->old[n].exp_avg_sq;
        } else if (r->state_format == WB_HALF) {
            ((uint16_t *)r->exp_avg)[i] = (uint16_t)record->old[n].exp_avg;
            ((uint16_t *)r->exp_avg_sq)[i] = (uint16_t)record->old[n].exp_avg_sq;
        }
        if (r->master) {
            r->master[i] = parameter;
        } else {
            r->high[i] = split_high(parameter);
            r->low[i] = split_low(parameter);
        }
    }
}

FUNCTION void undo_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const vector_factors f = spread(factors, c);
    const inverse_factors back = inverse_of(factors);
    const int64_t whole = range.count / ROW * ROW;
    for (int64_t i = 0; i < whole; i += ROW) {
        prefetch_moments(&range, i, c);
        prefetch_parameter(&range, i, c);
        prefetch_residues(&range, i, c);
        undo_row(&range, i, i, &f, &back, c);
    }
    if (whole < range.count) {
        padded_end end;
        take_end(&end, r, whole, ROW);
        undo_row(&end.range, 0, whole, &f, &back, c);
        give_end(&end, r, whole);
    }
    give_back_misfits(r, 0);
}

#include "compact_speculation_kernel.h"

/* `speculate` and `undo`: the loops of a format. */
#define SPECULATION(name, type, kind, format, speculate, undo)                                                         \
    SEPARATE_FUNCTION void speculate_##name(const wb_range *r, const wb_adamw_factors *factors)                        \
    {                                                                                                                  \
        speculate(r, factors, (choices){type, kind, format, 0});                                                       \
    }                                                                                                                  \
    SEPARATE_FUNCTION void undo_##name(const wb_range *r, const wb_adamw_factors *factors)                             \
    {                                                                                                                  \
        undo(r, factors, (choices){type, kind, format, 0});                                                            \
    }

#endif
