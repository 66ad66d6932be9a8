/* AdamW in format `exact` ahead of the verdict on its gradients, and the exact inverse.
 *
 * From the new moments, the gradient and the formula, the old state follows up to its roundings. The kernel predicts it,
 * and stores by how many units in the last place (as a difference of bits, modulo 2^32) the prediction is wrong: a word
 * an element (16 bits of exp_avg, 8 of exp_avg_sq, 8 of the parameter). Where that does not fit (a moment that was nearly nothing beside its gradient), the element's old state is
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

/* The predictions of the old state, as bits. `gradient` is scaled; `change`: of the parameter. */
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

FUNCTION ivector old_parameter(vector parameter, vector change, const inverse_factors *back)
{
    return v_bits(v_mul(v_sub(parameter, change), back->parameter));
}

/* The difference of two words of bits, so that what lies within half of `range` around 0 comes to be from 0 on. */
FUNCTION ivector residue(vector old, ivector prediction, uint32_t range)
{
    return i_add(i_sub(v_bits(old), prediction), i_set(range / 2));
}

/* A vector of a row, updated but not stored. `misfit` is not 0 in elements whose residues do not fit. */
typedef struct {
    vector exp_avg, exp_avg_sq, parameter;
    ivector residues, misfit;
} speculated;

FUNCTION speculated speculated_vector(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter,
                                      const vector_factors *f, const inverse_factors *back, choices c)
{
    speculated next = {.exp_avg = new_exp_avg(exp_avg, gradient, f, c),
                       .exp_avg_sq = new_exp_avg_sq(exp_avg_sq, gradient, f, c)};
    vector change = change_of(next.exp_avg, v_sqrt(next.exp_avg_sq), f, c);
    next.parameter = v_add(v_mul(parameter, f->decay_factor), change);
    gradient = v_mul(gradient, f->gradient_scale);
    ivector first = residue(exp_avg, old_exp_avg(next.exp_avg, gradient, f, back), 1 << 16);
    ivector second = residue(exp_avg_sq, old_exp_avg_sq(next.exp_avg_sq, gradient, f, back), 1 << 8);
    ivector third = residue(parameter, old_parameter(next.parameter, change, back), 1 << 8);
    next.residues = i_or(i_or(first, i_left(second, 16)), i_left(third, 24));
    /* A NaN anywhere makes one of the new parameter; which NaN a prediction is then, no standard promises. */
    next.misfit = i_or(i_or(i_right(first, 16), i_right(i_or(second, third), 8)), v_nan(next.parameter));
    return next;
}

FUNCTION uint32_t *moment_bits(void *moments, int64_t i)
{
    return (uint32_t *)moments + i;
}

FUNCTION uint32_t parameter_bits(const wb_range *r, int64_t i)
{
    return bits_from_float(r->master ? r->master[i] : joined(r->high[i], r->low[i]));
}

/* Keeps the old state of the misfits among the `count` elements of a row, which lies at `i` of the range and at `at` of
 * the record; returns 0, and keeps none, where there is no room for all. */
SEPARATE_FUNCTION int keep_misfits(const wb_range *r, int64_t i, int64_t at, int64_t count, irow misfits)
{
    uint32_t misfit[ROW] __attribute__((aligned(64)));
    stream_words(misfit, misfits);
    wb_record *record = r->record;
    uint32_t escapes = record->escapes;
    for (int64_t n = 0; n < count; n++) {
        if (!misfit[n])
            continue;
        if (escapes == WB_ESCAPES)
            return 0;
        record->old[escapes].element = (uint32_t)(at + n);
        record->old[escapes].exp_avg = *moment_bits(r->exp_avg, i + n);
        record->old[escapes].exp_avg_sq = *moment_bits(r->exp_avg_sq, i + n);
        record->old[escapes].master = parameter_bits(r, i + n);
        escapes++;
    }
    record->escapes = escapes;
    return 1;
}

/* Updates a row, which lies at `i` of the range and at `at` of the record; returns whether it could be stored. */
FUNCTION int speculated_row(const wb_range *r, int64_t i, int64_t at, int64_t count, const vector_factors *f,
                            const inverse_factors *back, choices c)
{
    row gradient = load_gradient(r, i, c), parameter = load_parameter(r, i, c);
    row exp_avg = load_moment(r->exp_avg, i, c), exp_avg_sq = load_moment(r->exp_avg_sq, i, c);
    speculated a = speculated_vector(gradient.a, exp_avg.a, exp_avg_sq.a, parameter.a, f, back, c);
    speculated b = speculated_vector(gradient.b, exp_avg.b, exp_avg_sq.b, parameter.b, f, back, c);
    if (__builtin_expect(i_any(i_or(a.misfit, b.misfit)), 0) &&
        !keep_misfits(r, i, at, count, (irow){a.misfit, b.misfit}))
        return 0;
    store_float32((float *)r->exp_avg + i, (row){a.exp_avg, b.exp_avg});
    store_float32((float *)r->exp_avg_sq + i, (row){a.exp_avg_sq, b.exp_avg_sq});
    store_parameter(r, i, (row){a.parameter, b.parameter}, c);
    stream_words(r->record->residues + at, (irow){a.residues, b.residues});
    return 1;
}

FUNCTION int64_t speculated_rows(const wb_range *r, const vector_factors *f, const inverse_factors *back, choices c)
{
    const wb_range range = *r;
    const int64_t whole = range.count / ROW * ROW;
    for (int64_t i = 0; i < whole; i += ROW) {
        prefetch_moments(&range, i, c);
        prefetch_parameter(&range, i, c);
        if (!speculated_row(&range, i, i, ROW, f, back, c))
            return i;
    }
    if (whole < range.count) {
        padded_end end;
        take_end(&end, r, whole, ROW);
        if (!speculated_row(&end.range, 0, whole, range.count - whole, f, back, c))
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

FUNCTION old_state undone(vector gradient, vector exp_avg, vector exp_avg_sq, vector parameter, ivector residues,
                          const vector_factors *f, const inverse_factors *back, choices c)
{
    vector change = change_of(exp_avg, v_sqrt(exp_avg_sq), f, c);
    gradient = v_mul(gradient, f->gradient_scale);
    return (old_state){
        with_residue(old_exp_avg(exp_avg, gradient, f, back), i_lower(residues), 1 << 16),
        with_residue(old_exp_avg_sq(exp_avg_sq, gradient, f, back), i_right(i_left(residues, 8), 24), 1 << 8),
        with_residue(old_parameter(parameter, change, back), i_right(residues, 24), 1 << 8),
    };
}

FUNCTION void undo_row(const wb_range *r, int64_t i, const uint32_t *residues, const vector_factors *f,
                       const inverse_factors *back, choices c)
{
    row gradient = load_gradient(r, i, c), parameter = load_parameter(r, i, c);
    row exp_avg = load_moment(r->exp_avg, i, c), exp_avg_sq = load_moment(r->exp_avg_sq, i, c);
    irow words = load_words(residues);
    old_state a = undone(gradient.a, exp_avg.a, exp_avg_sq.a, parameter.a, words.a, f, back, c);
    old_state b = undone(gradient.b, exp_avg.b, exp_avg_sq.b, parameter.b, words.b, f, back, c);
    store_float32((float *)r->exp_avg + i, (row){a.exp_avg, b.exp_avg});
    store_float32((float *)r->exp_avg_sq + i, (row){a.exp_avg_sq, b.exp_avg_sq});
    store_parameter(r, i, (row){a.parameter, b.parameter}, c);
}

FUNCTION void undo_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const vector_factors f = spread(factors, c);
    const inverse_factors back = inverse_of(factors);
    const wb_record *record = range.record;
    const int64_t whole = range.count / ROW * ROW;
    for (int64_t i = 0; i < whole; i += ROW) {
        prefetch_moments(&range, i, c);
        prefetch_parameter(&range, i, c);
        prefetch_row(record->residues, i, 4);
        undo_row(&range, i, record->residues + i, &f, &back, c);
    }
    if (whole < range.count) {
        padded_end end;
        take_end(&end, r, whole, ROW);
        undo_row(&end.range, 0, record->residues + whole, &f, &back, c);
        give_end(&end, r, whole);
    }
    for (uint32_t n = 0; n < record->escapes; n++) {
        int64_t i = record->old[n].element;
        float parameter = float_from_bits(record->old[n].master);
        *moment_bits(range.exp_avg, i) = record->old[n].exp_avg;
        *moment_bits(range.exp_avg_sq, i) = record->old[n].exp_avg_sq;
        if (range.master) {
            range.master[i] = parameter;
        } else {
            range.high[i] = split_high(parameter);
            range.low[i] = split_low(parameter);
        }
    }
}

#define SPECULATION(name, type, kind)                                                                                  \
    SEPARATE_FUNCTION void speculate_##name(const wb_range *r, const wb_adamw_factors *factors)                        \
    {                                                                                                                  \
        speculate_loop(r, factors, (choices){type, kind, WB_EXACT, 0});                                                \
    }                                                                                                                  \
    SEPARATE_FUNCTION void undo_##name(const wb_range *r, const wb_adamw_factors *factors)                             \
    {                                                                                                                  \
        undo_loop(r, factors, (choices){type, kind, WB_EXACT, 0});                                                     \
    }

#endif
