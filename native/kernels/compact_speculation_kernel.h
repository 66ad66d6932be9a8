/* What speculation_kernel.h does, in format `compact`. The old codes and scales are kept as they were, and give the new
 * moments again; a byte says by how much the parameter that is predicted from those is wrong. Only a parameter can be a
 * misfit.
 *
 * A block's state has one scale, so a record ends with a whole block: where a misfit of one finds no room, the rows of the
 * block that are stored already are undone at once.
 */
#ifndef WORKBENCH_COMPACT_SPECULATION_KERNEL_H
#define WORKBENCH_COMPACT_SPECULATION_KERNEL_H

FUNCTION wb_compact_residues *compact_residues(const wb_range *r)
{
    return (wb_compact_residues *)(void *)r->record->residues;
}

/* `start` of the range, where a block begins, is `at` of the record. */
FUNCTION compact_pair compact_keep_scales(const wb_range *r, int64_t start, int64_t at, const wb_adamw_factors *factors)
{
    wb_compact_residues *old = compact_residues(r);
    old->exp_avg_scale[at / WB_BLOCK] = r->exp_avg_scale[start / WB_BLOCK];
    old->exp_avg_sq_scale[at / WB_BLOCK] = r->exp_avg_sq_scale[start / WB_BLOCK];
    return compact_decayed_scales(r, start / WB_BLOCK, factors);
}

FUNCTION void compact_keep_codes(const wb_range *r, int64_t i, int64_t at)
{
    wb_compact_residues *old = compact_residues(r);
    stream_bytes(old->exp_avg + at, (const int8_t *)r->exp_avg + i);
    stream_bytes(old->exp_avg_sq + at, (const uint8_t *)r->exp_avg_sq + i);
}

/* Finishes a row of the scratch, which lies at `i` of the range and at `at` of the record; returns whether it could be
 * stored. */
FUNCTION int compact_speculated_row(const wb_range *r, int64_t i, int64_t at, int64_t count,
                                    const compact_scratch *scratch, compact_pair factor, irow random,
                                    const vector_factors *f, const inverse_factors *back, choices c)
{
    const int64_t row_at = at % WB_BLOCK;
    pending_row next = {load_float32(scratch->rows[row_at / ROW].exp_avg),
                        load_float32(scratch->rows[row_at / ROW].root)};
    row parameter = load_parameter(r, i, c);
    irow residues, misfits;
#define HALF_ROW(half)                                                                                                 \
    do {                                                                                                               \
        vector change = change_of(next.exp_avg.half, next.root.half, f, c), old = parameter.half;                      \
        parameter.half = v_fma(old, f->decay_factor, change);                                                          \
        residues.half = residue(old, old_parameter(parameter.half, change, back), 1 << 8);                             \
        misfits.half = i_or(i_right(residues.half, 8), v_nan(parameter.half));                                         \
    } while (0)
    HALF_ROW(a);
    HALF_ROW(b);
#undef HALF_ROW
    if (__builtin_expect(i_any(i_or(misfits.a, misfits.b)), 0) &&
        !keep_misfits(r, i, at, count, misfits, order_of(c)))
        return 0;
    stream_uint8(compact_residues(r)->parameter + at, residues, order_of(c));
    compact_store_codes(r, i, scratch, row_at, next, factor, random, c);
    store_parameter(r, i, parameter, c);
    return 1;
}

/* Gives a block back its scales and codes, and the first `rows` elements of it their parameters. */
FUNCTION void compact_undo_block(const wb_range *r, int64_t start, int64_t at, int64_t elements, int64_t rows,
                                 const vector_factors *f, const inverse_factors *back, const wb_adamw_factors *factors,
                                 choices c)
{
    const wb_compact_residues *old = compact_residues(r);
    r->exp_avg_scale[start / WB_BLOCK] = old->exp_avg_scale[at / WB_BLOCK];
    r->exp_avg_sq_scale[start / WB_BLOCK] = old->exp_avg_sq_scale[at / WB_BLOCK];
    const compact_pair decayed = compact_decayed_scales(r, start / WB_BLOCK, factors);
    for (int64_t n = 0; n < rows; n += ROW) {
        const int64_t i = start + n;
        prefetch_row(r->gradient, i, c.gradient_type == WB_FLOAT32 ? 4 : 2);
        prefetch_parameter(r, i, c);
        pending_row next = compact_new_moments(load_gradient(r, i, c), old->exp_avg + at + n, old->exp_avg_sq + at + n,
                                               decayed, f, c);
        irow residues = load_uint8(old->parameter + at + n, order_of(c));
        row parameter = load_parameter(r, i, c);
#define HALF_ROW(half)                                                                                                 \
    do {                                                                                                               \
        vector change = change_of(next.exp_avg.half, next.root.half, f, c);                                            \
        parameter.half = with_residue(old_parameter(parameter.half, change, back), residues.half, 1 << 8);             \
    } while (0)
        HALF_ROW(a);
        HALF_ROW(b);
#undef HALF_ROW
        store_parameter(r, i, parameter, c);
    }
    memcpy((int8_t *)r->exp_avg + start, old->exp_avg + at, (size_t)elements);
    memcpy((uint8_t *)r->exp_avg_sq + start, old->exp_avg_sq + at, (size_t)elements);
}

/* The roots of a block that are beyond the largest wait for the verdict, with all that follows. */
FUNCTION int compact_can_be_undone(compact_pair largest)
{
    return v_largest(largest.exp_avg_sq) <= LARGEST_ROOT;
}

/* The block that a range ends with, if it is not full, at `start`; returns whether it was updated. */
FUNCTION int compact_speculated_end(const wb_range *r, int64_t start, irow random, const vector_factors *f,
                                    const inverse_factors *back, const wb_adamw_factors *factors, choices c)
{
    const int64_t count = r->count - start, rows_end = (count + ROW - 1) / ROW * ROW;
    padded_end end;
    take_end(&end, r, start, rows_end);
    end.range.exp_avg_scale += start / WB_BLOCK;
    end.range.exp_avg_sq_scale += start / WB_BLOCK;
    compact_scratch scratch;
    memset(&scratch, 0, sizeof scratch);
    const compact_pair decayed = compact_keep_scales(&end.range, 0, start, factors);
    compact_pair largest = {v_set(0), v_set(0)};
    for (int64_t at = 0; at < rows_end; at += ROW) {
        compact_keep_codes(&end.range, at, start + at);
        largest = compact_moments_row(&end.range, at, &scratch, at, decayed, largest, f, c);
    }
    if (!compact_can_be_undone(largest))
        return 0;
    const compact_pair factor = compact_new_scales(&end.range, 0, &scratch, largest);
    const uint32_t escapes = r->record->escapes;
    for (int64_t at = 0; at < rows_end; at += ROW) {
        if (!compact_speculated_row(&end.range, at, start + at, count - at, &scratch, factor, random, f, back, c)) {
            compact_undo_block(&end.range, 0, start, 0, 0, f, back, factors, c); /* the scales: all else is a copy */
            r->record->escapes = escapes;
            return 0;
        }
        random = next_random_row(random);
    }
    give_end(&end, r, start);
    return 1;
}

/* Finishes the row at `at` of the block at `start`; where that cannot be, undoes what was stored of the block, `escapes`
 * being those before it, and returns 0. */
FUNCTION int compact_speculated_or_undone(const wb_range *r, int64_t start, int64_t at, const compact_scratch *scratch,
                                          compact_pair factor, irow random, uint32_t escapes, const vector_factors *f,
                                          const inverse_factors *back, const wb_adamw_factors *factors, choices c)
{
    if (compact_speculated_row(r, start + at, start + at, ROW, scratch, factor, random, f, back, c))
        return 1;
    compact_undo_block(r, start, start, WB_BLOCK, at, f, back, factors, c);
    give_back_misfits(r, escapes);
    r->record->escapes = escapes;
    return 0;
}

FUNCTION int64_t compact_speculated_blocks(const wb_range *r, const vector_factors *f, const inverse_factors *back,
                                           const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const int64_t whole = range.count / WB_BLOCK * WB_BLOCK;
    compact_scratch scratches[2];
    irow random = random_row(range.random_key, order_of(c));
    compact_pair factor = {v_set(0), v_set(0)};
    uint32_t escapes = 0;
    for (int64_t start = 0; start < whole; start += WB_BLOCK) {
        compact_scratch *scratch = &scratches[start / WB_BLOCK & 1];
        const compact_scratch *before = &scratches[1 - (start / WB_BLOCK & 1)];
        const compact_pair decayed = compact_keep_scales(&range, start, start, factors);
        compact_pair largest = {v_set(0), v_set(0)};
        for (int64_t at = 0; at < WB_BLOCK; at += ROW) {
            prefetch_moments(&range, start + at, c);
            prefetch_parameter(&range, start + at, c);
            compact_keep_codes(&range, start + at, start + at);
            largest = compact_moments_row(&range, start + at, scratch, at, decayed, largest, f, c);
            if (BLOCKS_UNDER_WAY == 2 && start > 0) {
                if (!compact_speculated_or_undone(&range, start - WB_BLOCK, at, before, factor, random, escapes, f, back,
                                                  factors, c))
                    return start - WB_BLOCK;
                random = next_random_row(random);
            }
        }
        if (!compact_can_be_undone(largest))
            return start;
        factor = compact_new_scales(&range, start / WB_BLOCK, scratch, largest);
        escapes = r->record->escapes;
        for (int64_t at = 0; (BLOCKS_UNDER_WAY == 1 || start + WB_BLOCK == whole) && at < WB_BLOCK; at += ROW) {
            if (!compact_speculated_or_undone(&range, start, at, scratch, factor, random, escapes, f, back, factors, c))
                return start;
            random = next_random_row(random);
        }
    }
    if (whole < range.count && !compact_speculated_end(r, whole, random, f, back, factors, c))
        return whole;
    return range.count;
}

FUNCTION void compact_speculate_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const vector_factors f = spread(factors, c);
    const inverse_factors back = inverse_of(factors);
    r->record->escapes = 0;
    r->record->done = (uint32_t)compact_speculated_blocks(r, &f, &back, factors, c);
    end_stream();
}

FUNCTION void compact_undo_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const vector_factors f = spread(factors, c);
    const inverse_factors back = inverse_of(factors);
    const int64_t whole = range.count / WB_BLOCK * WB_BLOCK;
    for (int64_t start = 0; start < whole; start += WB_BLOCK)
        compact_undo_block(&range, start, start, WB_BLOCK, WB_BLOCK, &f, &back, factors, c);
    if (whole < range.count) {
        const int64_t rows_end = (range.count - whole + ROW - 1) / ROW * ROW;
        padded_end end;
        take_end(&end, r, whole, rows_end);
        end.range.exp_avg_scale += whole / WB_BLOCK;
        end.range.exp_avg_sq_scale += whole / WB_BLOCK;
        compact_undo_block(&end.range, 0, whole, rows_end, rows_end, &f, &back, factors, c);
        give_end(&end, r, whole);
    }
    give_back_misfits(r, 0);
}

#endif
