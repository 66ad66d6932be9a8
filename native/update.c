/* The update: a table of pieces cut into slices, each slice into ranges for the kernels.
 *
 * The kernels read bfloat16 gradients beside a split master and float32 ones anywhere. All else (float16 gradients,
 * bfloat16 ones beside a float32 master, coupled decay) is first prepared in float32, a few thousand elements at a time,
 * so that it stays in the processor's own cache; 16-bit working weights are written from there likewise.
 *
 * Where the sums of squares are wanted too, a block of elements is measured right before it is updated: memory is read
 * once for both.
 *
 * Invariant: how the work is cut never shows in a result. Slices hold whole blocks of a piece, and random bits follow
 * the element's place in its parameter.
 */
#include <math.h>
#include <stdatomic.h>

#include "pool.h"

/* Elements prepared at a time, in whole blocks: 8 KiB of float32. */
#define PREPARED_ELEMENTS 2048
/* Elements under one random key. */
#define KEY_ELEMENTS 65536

/* A piece that is updated in this call; `start` counts the elements of those before it, each rounded up to whole
 * grains. */
typedef struct {
    const wb_piece *piece;
    int64_t start;
    wb_adamw_factors factors;
    wb_adamw_factors speculated; /* of the update that is undone */
} update_item;

typedef struct {
    const wb_kernels *kernels;
    const wb_adamw *settings;
    const update_item *items;
    int64_t item_count;
    int64_t elements;
    int64_t slice_length;
    double *partials; /* where the gradients' sums of squares go, or NULL */
    int action;       /* enum wb_speculation, or PLAIN_UPDATE */
    atomic_llong *left;
} update_call;

#define PLAIN_UPDATE (-1)

/* As torch.optim.AdamW folds them in Python: all in double, rounded where they meet a tensor. */
static wb_adamw_factors factors_of(const wb_adamw *settings, const wb_piece *piece)
{
    double bias_correction1 = 1.0 - pow(settings->beta1, (double)piece->step);
    double bias_correction2 = 1.0 - pow(settings->beta2, (double)piece->step);
    double bias_correction2_sqrt = pow(bias_correction2, 0.5);
    double scale = piece->learning_rate_scale != 0.0 ? piece->learning_rate_scale : 1.0;
    double learning_rate = settings->learning_rate * scale;
    double decay = piece->decay && !settings->coupled_decay ? settings->weight_decay : 0.0;
    wb_adamw_factors factors = {
        .gradient_scale = settings->gradient_scale,
        .beta1 = (float)settings->beta1,
        .exp_avg_weight = (float)(1.0 - settings->beta1),
        .beta2 = (float)settings->beta2,
        .exp_avg_sq_weight = (float)(1.0 - settings->beta2),
        .decay_factor = (float)(1.0 - learning_rate * decay),
        .bias_correction2_sqrt = (float)bias_correction2_sqrt,
        .eps = (float)settings->eps,
        .step_size = (float)-(learning_rate / bias_correction1),
    };
    if (piece->state_format != WB_EXACT) {
        factors.exp_avg_weight = (float)((1.0 - settings->beta1) * settings->gradient_scale);
        factors.exp_avg_sq_weight = (float)(sqrt(1.0 - settings->beta2) * settings->gradient_scale);
        factors.eps = (float)(settings->eps * bias_correction2_sqrt);
        factors.step_size = (float)-(learning_rate / bias_correction1 * bias_correction2_sqrt);
    }
    return factors;
}

/* The same numbers for a gradient that the scale is in already. */
static wb_adamw_factors prepared_factors(const wb_adamw *settings, const wb_piece *piece)
{
    wb_adamw unscaled = *settings;
    unscaled.gradient_scale = 1.0f;
    return factors_of(&unscaled, piece);
}

static int needs_preparation(const wb_piece *piece, const wb_adamw *settings)
{
    return (settings->coupled_decay && piece->decay && settings->weight_decay != 0.0) ||
           piece->gradient_type == WB_FLOAT16 || (piece->gradient_type == WB_BFLOAT16 && piece->master);
}

/* SplitMix64's finalizer (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014). */
static uint64_t mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The key of one block of one parameter in one step: with it, the same roundings come out however the work is cut. */
static uint32_t random_key(const wb_piece *piece, int64_t begin)
{
    uint64_t block = (uint64_t)(piece->offset + begin) / KEY_ELEMENTS;
    return (uint32_t)(mixed(mixed(mixed((uint64_t)piece->random_stream) ^ (uint64_t)piece->step) ^ block) >> 32);
}

/* The elements [begin, begin + count) of a piece, which lie under one key. */
static wb_range range_of(const wb_piece *piece, int64_t begin, int64_t count)
{
    size_t first = (size_t)begin, width = WB_MOMENT_BYTES(piece->state_format);
    size_t gradient_width = piece->gradient_type == WB_FLOAT32 ? 4 : 2;
    wb_range range = {
        .count = count,
        .gradient = (const char *)piece->gradient + first * gradient_width,
        .gradient_type = piece->gradient_type,
        .state_format = piece->state_format,
        .exp_avg = (char *)piece->exp_avg + first * width,
        .exp_avg_sq = (char *)piece->exp_avg_sq + first * width,
    };
    if (piece->master) {
        range.master = (float *)piece->master + first;
    } else {
        range.high = (uint16_t *)piece->high + first;
        range.low = (int16_t *)piece->low + first;
    }
    if (piece->state_format == WB_COMPACT) {
        range.exp_avg_scale = (float *)piece->exp_avg_scale + first / WB_BLOCK;
        range.exp_avg_sq_scale = (float *)piece->exp_avg_sq_scale + first / WB_BLOCK;
    }
    if (piece->state_format != WB_EXACT) {
        int64_t key_begin = begin / KEY_ELEMENTS * KEY_ELEMENTS;
        range.random_key = random_key(piece, begin) + (uint32_t)(begin - key_begin) * WB_RANDOM_STRIDE;
    }
    return range;
}

/* The same with the gradient as the kernels read it: where that is not as it lies, in `prepared`. */
static wb_range prepared_range(const update_call *call, const update_item *item, int64_t begin, int64_t count,
                               float scale, float *prepared)
{
    const wb_piece *piece = item->piece;
    const wb_adamw *settings = call->settings;
    wb_range range = range_of(piece, begin, count);
    if (needs_preparation(piece, settings)) {
        float decay = piece->decay && settings->coupled_decay ? (float)settings->weight_decay : 0.0f;
        call->kernels->prepare(prepared, range.gradient, range.gradient_type, scale, decay, range.master, range.high,
                               range.low, count);
        range.gradient = prepared;
        range.gradient_type = WB_FLOAT32;
    }
    return range;
}

/* Writes the 16-bit working weights of elements whose master is new. */
static void emit_range(const update_call *call, const wb_piece *piece, int64_t begin, int64_t count)
{
    if (!piece->emit)
        return;
    uint16_t *emit = (uint16_t *)piece->emit + begin;
    const float *master = (const float *)piece->master + begin;
    if (piece->emit_type == WB_FLOAT16)
        call->kernels->narrow(emit, WB_FLOAT16, master, count);
    else
        call->kernels->upper_half(emit, master, count);
}

static void update_range(const update_call *call, const update_item *item, int64_t begin, int64_t count)
{
    float prepared[PREPARED_ELEMENTS];
    wb_range range = prepared_range(call, item, begin, count, call->settings->gradient_scale, prepared);
    call->kernels->adamw(&range, &item->factors);
    emit_range(call, item->piece, begin, count);
}

/* The most elements of an item that one range may have. */
static int64_t range_limit(const wb_piece *piece, const wb_adamw *settings)
{
    if (needs_preparation(piece, settings) || piece->emit)
        return PREPARED_ELEMENTS;
    return piece->state_format == WB_EXACT ? INT64_MAX : KEY_ELEMENTS;
}

static void update_elements(const update_call *call, const update_item *item, int64_t from, int64_t stop)
{
    int64_t limit = range_limit(item->piece, call->settings);
    while (from < stop) {
        int64_t count = stop - from;
        if (limit < INT64_MAX)
            count = smaller(count, limit - from % limit);
        update_range(call, item, from, count);
        from += count;
    }
}

/* The sums of squares that begin between `begin` and `end`, elements of an item; each is followed by the update of what it
 * was taken of, which is in the cache then. What is not finite is left as it is. */
static void measure_and_update(const update_call *call, const update_item *item, int64_t begin, int64_t end)
{
    const wb_piece *piece = item->piece;
    size_t width = piece->gradient_type == WB_FLOAT32 ? 4 : 2;
    int64_t block = (begin + WB_PARTIAL_ELEMENTS - 1) / WB_PARTIAL_ELEMENTS;
    int64_t first = block * WB_PARTIAL_ELEMENTS;
    for (; first < smaller(piece->count, end); block++, first += WB_PARTIAL_ELEMENTS) {
        int64_t count = smaller(WB_PARTIAL_ELEMENTS, piece->count - first);
        const char *values = (const char *)piece->gradient + (size_t)first * width;
        double sum = call->kernels->sum_of_squares(values, piece->gradient_type, count);
        call->partials[piece->first_partial + block] = sum;
        if (isfinite(sum))
            update_elements(call, item, first, first + count);
    }
}

/* ---- Ahead of a verdict, and after it ---- */

int64_t wb_record_bytes(int state_format)
{
    size_t residues = state_format == WB_EXACT  ? sizeof(wb_exact_residues)
                      : state_format == WB_HALF ? sizeof(wb_half_residues)
                                                : sizeof(wb_compact_residues);
    return (int64_t)(sizeof(wb_record) + residues);
}

static int can_be_undone(const wb_piece *piece, const wb_adamw *settings)
{
    return piece->records && !settings->coupled_decay && (float)(1.0 - settings->beta1) < 0.5f;
}

static void speculate_record(const update_call *call, const update_item *item, int64_t first, int64_t count)
{
    const wb_piece *piece = item->piece;
    const wb_adamw *settings = call->settings;
    if (!can_be_undone(piece, settings)) {
        if (call->action == WB_SPECULATE)
            atomic_fetch_add_explicit(call->left, count, memory_order_relaxed);
        else if (call->action != WB_UNDO)
            update_elements(call, item, first, first + count);
        return;
    }
    const int64_t place = first / WB_RECORD_ELEMENTS * wb_record_bytes(piece->state_format);
    wb_record *record = (wb_record *)(piece->records + (uintptr_t)place);
    float prepared[PREPARED_ELEMENTS];
    if (call->action == WB_SPECULATE) {
        wb_range range = prepared_range(call, item, first, count, settings->gradient_scale, prepared);
        range.record = record;
        call->kernels->speculate(&range, &item->factors);
        emit_range(call, piece, first, record->done);
        if (record->done < count)
            atomic_fetch_add_explicit(call->left, count - record->done, memory_order_relaxed);
        return;
    }
    const int64_t done = record->done;
    if (call->action == WB_COMPLETE) {
        if (done < count)
            update_range(call, item, first + done, count - done);
        return;
    }
    if (done > 0) {
        wb_range range = prepared_range(call, item, first, done, settings->speculated_scale, prepared);
        range.record = record;
        call->kernels->undo(&range, &item->speculated);
    }
    if (call->action == WB_REDO)
        update_range(call, item, first, count);
    else
        emit_range(call, piece, first, done);
}

/* The records that begin between `begin` and `end`, elements of an item. */
static void speculate_elements(const update_call *call, const update_item *item, int64_t begin, int64_t end)
{
    int64_t count = item->piece->count;
    int64_t first = (begin + WB_RECORD_ELEMENTS - 1) / WB_RECORD_ELEMENTS * WB_RECORD_ELEMENTS;
    for (; first < smaller(count, end); first += WB_RECORD_ELEMENTS)
        speculate_record(call, item, first, smaller(WB_RECORD_ELEMENTS, count - first));
}

static void update_slice(void *context, int64_t slice)
{
    const update_call *call = context;
    int64_t begin = slice * call->slice_length;
    int64_t end = smaller(begin + call->slice_length, call->elements);
    /* The last item that starts at or before `begin`. */
    int64_t first = 0;
    for (int64_t last = call->item_count - 1; first < last;) {
        int64_t middle = first + (last - first + 1) / 2;
        if (call->items[middle].start <= begin)
            first = middle;
        else
            last = middle - 1;
    }
    for (const update_item *item = call->items + first; item < call->items + call->item_count; item++) {
        if (item->start >= end)
            break;
        int64_t from = begin > item->start ? begin - item->start : 0;
        if (call->action != PLAIN_UPDATE)
            speculate_elements(call, item, from, end - item->start);
        else if (call->partials)
            measure_and_update(call, item, from, end - item->start);
        else
            update_elements(call, item, from, smaller(item->piece->count, end - item->start));
    }
}

/* The factors of a piece's update, by the scale of `settings`. */
static wb_adamw_factors usual_factors(const wb_adamw *settings, const wb_piece *piece)
{
    return needs_preparation(piece, settings) ? prepared_factors(settings, piece) : factors_of(settings, piece);
}

/* `call` says what is done; its kernels, items and slices are found here. */
static int64_t run_update(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, update_call call)
{
    const wb_adamw *settings = call.settings;
    double *partials = call.partials;
    for (int64_t i = 0; i < piece_count; i++)
        if (pieces[i].gradient && pieces[i].step < 1)
            return i + 1;
    if (piece_count == 0)
        return WB_OK;

    pool_enter(pool);
    update_item *items = pool_scratch(pool, (size_t)piece_count * sizeof *items);
    if (!items) {
        pool_leave(pool);
        return WB_NO_MEMORY;
    }
    int64_t item_count = 0, elements = 0;
    for (int64_t i = 0; i < piece_count; i++) {
        const wb_piece *piece = pieces + i;
        if (partials && !piece->gradient)
            for (int64_t block = 0; block * WB_PARTIAL_ELEMENTS < piece->count; block++)
                partials[piece->first_partial + block] = 0.0;
        if (!piece->gradient || piece->count == 0)
            continue;
        update_item *item = items + item_count;
        item->piece = piece;
        item->start = elements;
        /* Neighbours mostly share their factors, and pow is not cheap. */
        const wb_piece *before = item_count > 0 ? item[-1].piece : NULL;
        if (before && before->step == piece->step && before->decay == piece->decay &&
            before->learning_rate_scale == piece->learning_rate_scale && before->state_format == piece->state_format &&
            needs_preparation(before, settings) == needs_preparation(piece, settings)) {
            item->factors = item[-1].factors;
            item->speculated = item[-1].speculated;
        } else {
            wb_adamw speculated = *settings;
            speculated.gradient_scale = settings->speculated_scale;
            item->factors = usual_factors(settings, piece);
            item->speculated = usual_factors(&speculated, piece);
        }
        item_count++;
        elements += (piece->count + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN;
    }
    if (elements > 0) {
        int64_t length = pool_slice_length(elements, pool_slices(pool, elements));
        call.kernels = pool_kernels(pool);
        call.items = items;
        call.item_count = item_count;
        call.elements = elements;
        call.slice_length = length;
        pool_run(pool, (elements + length - 1) / length, update_slice, &call);
    }
    pool_leave(pool);
    return WB_OK;
}

int64_t wb_update(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, const wb_adamw *settings,
                  double *partials)
{
    update_call call = {.settings = settings, .partials = partials, .action = PLAIN_UPDATE};
    return run_update(pool, pieces, piece_count, call);
}

int64_t wb_speculation(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, const wb_adamw *settings,
                       int action, int64_t *left)
{
    atomic_llong counted = 0;
    update_call call = {.settings = settings, .action = action, .left = &counted};
    int64_t result = run_update(pool, pieces, piece_count, call);
    *left = atomic_load(&counted);
    return result;
}
