/* The calls of interface.h but the update: sums of squares, conversions and copies, cut into even slices for the pool.
 *
 * Invariant: how the work is cut never shows in a result. Elementwise work may be cut anywhere; a partial sum
 * is never cut.
 */
#include <string.h>

#include "pool.h"

/* ---- Sum of squares ---- */

typedef struct {
    const wb_kernels *kernels;
    const wb_piece *pieces;
    int64_t piece_count;
    double *partials;
    int64_t partial_count;
    int64_t slice_length; /* in partials */
} sum_call;

static int64_t partials_of(const wb_piece *piece)
{
    return (piece->count + WB_PARTIAL_ELEMENTS - 1) / WB_PARTIAL_ELEMENTS;
}

static void sum_slice(void *context, int64_t slice)
{
    const sum_call *call = context;
    int64_t begin = slice * call->slice_length;
    int64_t end = smaller(begin + call->slice_length, call->partial_count);
    /* The last piece whose partials start at or before `begin`; an empty one shares its start with the next. */
    int64_t index = 0;
    for (int64_t last = call->piece_count - 1; index < last;) {
        int64_t middle = index + (last - index + 1) / 2;
        if (call->pieces[middle].first_partial <= begin)
            index = middle;
        else
            last = middle - 1;
    }
    for (const wb_piece *piece = call->pieces + index; begin < end; piece++) {
        int64_t stop = smaller(piece->first_partial + partials_of(piece), end);
        size_t width = piece->gradient_type == WB_FLOAT32 ? 4 : 2;
        for (; begin < stop; begin++) {
            int64_t first = (begin - piece->first_partial) * WB_PARTIAL_ELEMENTS;
            int64_t count = smaller(WB_PARTIAL_ELEMENTS, piece->count - first);
            const char *values = (const char *)piece->gradient + (size_t)first * width;
            call->partials[begin] =
                piece->gradient ? call->kernels->sum_of_squares(values, piece->gradient_type, count) : 0.0;
        }
    }
}

int64_t wb_sum_of_squares(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, double *partials)
{
    if (piece_count == 0)
        return WB_OK;
    int64_t elements = 0;
    for (int64_t i = 0; i < piece_count; i++)
        elements += pieces[i].gradient ? pieces[i].count : 0;
    const wb_piece *last = pieces + piece_count - 1;
    int64_t partial_count = last->first_partial + partials_of(last);
    if (partial_count == 0)
        return WB_OK;

    pool_enter(pool);
    int64_t slices = smaller(pool_slices(pool, elements), partial_count);
    int64_t length = (partial_count + slices - 1) / slices;
    sum_call call = {pool_kernels(pool), pieces, piece_count, partials, partial_count, length};
    pool_run(pool, (partial_count + length - 1) / length, sum_slice, &call);
    pool_leave(pool);
    return WB_OK;
}

/* ---- Conversions and copies ---- */

typedef struct {
    const wb_kernels *kernels;
    int64_t count;
    int64_t slice_length;
    uintptr_t destination;
    uintptr_t source;
    uintptr_t high;
    uintptr_t low;
    int source_type;
    int destination_type;
    int overwrite;
} convert_call;

static void run_convert(wb_pool *pool, convert_call *call, int64_t elements, pool_task task)
{
    if (call->count == 0)
        return;
    pool_enter(pool);
    call->kernels = pool_kernels(pool);
    call->slice_length = pool_slice_length(call->count, pool_slices(pool, elements));
    pool_run(pool, (call->count + call->slice_length - 1) / call->slice_length, task, call);
    pool_leave(pool);
}

static int64_t begin_of(const convert_call *call, int64_t slice)
{
    return slice * call->slice_length;
}

static int64_t length_of(const convert_call *call, int64_t slice)
{
    return smaller(call->slice_length, call->count - begin_of(call, slice));
}

static void accumulate_slice(void *context, int64_t slice)
{
    const convert_call *call = context;
    int64_t begin = begin_of(call, slice);
    int64_t width = call->source_type == WB_FLOAT32 ? 4 : 2;
    call->kernels->accumulate((float *)call->destination + begin, (const char *)call->source + begin * width,
                              call->source_type, length_of(call, slice), call->overwrite);
}

void wb_accumulate(wb_pool *pool, uintptr_t destination, uintptr_t source, int source_type, int64_t count,
                   int overwrite)
{
    convert_call call = {.count = count,
                         .destination = destination,
                         .source = source,
                         .source_type = source_type,
                         .overwrite = overwrite};
    run_convert(pool, &call, count, accumulate_slice);
}

static void narrow_slice(void *context, int64_t slice)
{
    const convert_call *call = context;
    int64_t begin = begin_of(call, slice);
    call->kernels->narrow((uint16_t *)call->destination + begin, call->destination_type,
                          (const float *)call->source + begin, length_of(call, slice));
}

void wb_narrow(wb_pool *pool, uintptr_t destination, int destination_type, uintptr_t source, int64_t count)
{
    convert_call call = {
        .count = count, .destination = destination, .destination_type = destination_type, .source = source};
    run_convert(pool, &call, count, narrow_slice);
}

static void split_slice(void *context, int64_t slice)
{
    const convert_call *call = context;
    int64_t begin = begin_of(call, slice);
    call->kernels->split((const float *)call->source + begin, (uint16_t *)call->high + begin,
                         (int16_t *)call->low + begin, length_of(call, slice));
}

void wb_split(wb_pool *pool, uintptr_t source, uintptr_t high, uintptr_t low, int64_t count)
{
    convert_call call = {.count = count, .source = source, .high = high, .low = low};
    run_convert(pool, &call, count, split_slice);
}

static void join_slice(void *context, int64_t slice)
{
    const convert_call *call = context;
    int64_t begin = begin_of(call, slice);
    call->kernels->join((const uint16_t *)call->high + begin, (const int16_t *)call->low + begin,
                        (float *)call->destination + begin, length_of(call, slice));
}

void wb_join(wb_pool *pool, uintptr_t high, uintptr_t low, uintptr_t destination, int64_t count)
{
    convert_call call = {.count = count, .high = high, .low = low, .destination = destination};
    run_convert(pool, &call, count, join_slice);
}

static void copy_slice(void *context, int64_t slice)
{
    const convert_call *call = context;
    int64_t begin = begin_of(call, slice);
    memcpy((char *)call->destination + begin, (const char *)call->source + begin,
           (size_t)length_of(call, slice));
}

void wb_copy(wb_pool *pool, uintptr_t destination, uintptr_t source, int64_t bytes)
{
    convert_call call = {.count = bytes, .destination = destination, .source = source};
    run_convert(pool, &call, bytes / 4, copy_slice);
}
