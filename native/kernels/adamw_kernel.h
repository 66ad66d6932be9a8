/* AdamW with decoupled decay (Loshchilov and Hutter, 2019), in one pass: gradient scaled, moments, parameter, and the
 * master or its split written back. Formats `exact` and `half`; `compact` is in compact_kernel.h.
 *
 * The formula is written once, in rows of vectors; a C file for each instruction set includes its vectors, then this.
 * `exact` follows torch.optim.AdamW(foreach=False) operation by operation, and uses fma exactly where torch's CPU
 * kernels do on a processor that has it: in lerp and in addcmul, not in addcdiv. Exchanging any two operations changes
 * bits. What is left between the two is the square root: here it is rounded correctly, in a torch built with MKL it is
 * not always, so that parameters may differ in their last places while both moments are equal.
 *
 * `half` keeps both moments in bfloat16, rounded stochastically (see random_row): up with a probability
 * that makes the expectation exact. Rounding to nearest would let exp_avg_sq stand still when gradients fall, since
 * (1 - beta2) of it is less than half of bfloat16's last place.
 */
#ifndef WORKBENCH_ADAMW_KERNEL_H
#define WORKBENCH_ADAMW_KERNEL_H

enum master_kind { MASTER_PLAIN, MASTER_SPLIT };

typedef struct {
    vector gradient_scale, beta1, exp_avg_weight, beta2, exp_avg_sq_weight;
    vector decay_factor, bias_correction2_sqrt, eps, step_size;
} vector_factors;

/* Which of a loop's choices are constants: each combination is compiled to a function of its own. */
typedef struct {
    int gradient_type;
    enum master_kind kind;
    int format;
    int from_gradient; /* torch's lerp starts from the nearer end: the gradient where beta1 <= 0.5 */
} choices;

FUNCTION vector_factors spread(const wb_adamw_factors *f, choices c)
{
    return (vector_factors){
        .gradient_scale = v_set(f->gradient_scale),
        .beta1 = v_set(f->beta1),
        .exp_avg_weight = v_set(c.from_gradient ? f->exp_avg_weight - 1.0f : f->exp_avg_weight),
        .beta2 = v_set(f->beta2),
        .exp_avg_sq_weight = v_set(f->exp_avg_sq_weight),
        .decay_factor = v_set(f->decay_factor),
        .bias_correction2_sqrt = v_set(f->bias_correction2_sqrt),
        .eps = v_set(f->eps),
        .step_size = v_set(f->step_size),
    };
}

/* Beyond `exact`, the scale of the gradient is in the weights, and exp_avg_sq_weight is a root: of g^2, only the
 * weighted root is ever computed, so that nothing under- or overflows that exp_avg_sq itself would not. */
FUNCTION vector new_exp_avg(vector exp_avg, vector gradient, const vector_factors *f, choices c)
{
    if (c.format != WB_EXACT)
        return v_fma(gradient, f->exp_avg_weight, v_mul(exp_avg, f->beta1));
    gradient = v_mul(gradient, f->gradient_scale);
    return v_fma(f->exp_avg_weight, v_sub(gradient, exp_avg), c.from_gradient ? gradient : exp_avg);
}

FUNCTION vector new_exp_avg_sq(vector exp_avg_sq, vector gradient, const vector_factors *f, choices c)
{
    if (c.format != WB_EXACT) {
        vector weighted = v_mul(gradient, f->exp_avg_sq_weight);
        return v_fma(weighted, weighted, v_mul(exp_avg_sq, f->beta2));
    }
    gradient = v_mul(gradient, f->gradient_scale);
    return v_fma(v_mul(f->exp_avg_sq_weight, gradient), gradient, v_mul(exp_avg_sq, f->beta2));
}

/* `root` is the root of exp_avg_sq. Beyond `exact`, its bias correction is folded into eps and step_size. */
FUNCTION vector change_of(vector exp_avg, vector root, const vector_factors *f, choices c)
{
    if (c.format == WB_EXACT)
        root = v_div(root, f->bias_correction2_sqrt);
    return v_div(v_mul(f->step_size, exp_avg), v_add(root, f->eps));
}

FUNCTION vector new_parameter(vector parameter, vector exp_avg, vector root, const vector_factors *f, choices c)
{
    vector change = change_of(exp_avg, root, f, c);
    return c.format == WB_EXACT ? v_add(v_mul(parameter, f->decay_factor), change)
                                : v_fma(parameter, f->decay_factor, change);
}

/* float32 arrays are loaded in memory order, so all others have to be; without one, lane order is cheaper. */
FUNCTION enum row_order order_of(choices c)
{
    int float32 = c.gradient_type == WB_FLOAT32 || c.kind == MASTER_PLAIN || c.format == WB_EXACT;
    return float32 ? MEMORY_ORDER : LANE_ORDER;
}

/* Asks for what a later row of an array, `width` bytes an element, will read; not for every pair of elements. */
FUNCTION void prefetch_row(const void *array, int64_t i, int width)
{
    if (ROW < 16)
        return;
    const char *at = (const char *)array + i * width + WB_PREFETCH_BYTES;
    for (int offset = 0; offset < ROW * width; offset += 64)
        __builtin_prefetch(at + offset);
}

FUNCTION void prefetch_parameter(const wb_range *r, int64_t i, choices c)
{
    if (c.kind == MASTER_PLAIN) {
        prefetch_row(r->master, i, 4);
    } else {
        prefetch_row(r->high, i, 2);
        prefetch_row(r->low, i, 2);
    }
}

FUNCTION void prefetch_moments(const wb_range *r, int64_t i, choices c)
{
    prefetch_row(r->gradient, i, c.gradient_type == WB_FLOAT32 ? 4 : 2);
    prefetch_row(r->exp_avg, i, WB_MOMENT_BYTES(c.format));
    prefetch_row(r->exp_avg_sq, i, WB_MOMENT_BYTES(c.format));
}

FUNCTION row load_gradient(const wb_range *r, int64_t i, choices c)
{
    return c.gradient_type == WB_FLOAT32 ? load_float32((const float *)r->gradient + i)
                                         : load_bfloat16((const uint16_t *)r->gradient + i, order_of(c));
}

FUNCTION row load_parameter(const wb_range *r, int64_t i, choices c)
{
    return c.kind == MASTER_PLAIN ? load_float32(r->master + i) : load_split(r->high + i, r->low + i, order_of(c));
}

FUNCTION void store_parameter(const wb_range *r, int64_t i, row x, choices c)
{
    if (c.kind == MASTER_PLAIN)
        store_float32(r->master + i, x);
    else
        store_split(r->high + i, r->low + i, x, order_of(c));
}

FUNCTION row load_moment(const void *moments, int64_t i, choices c)
{
    return c.format == WB_EXACT ? load_float32((const float *)moments + i)
                                : load_bfloat16((const uint16_t *)moments + i, order_of(c));
}

/* `random` is below 2^16 in every element. */
FUNCTION void store_moment(void *moments, int64_t i, row x, irow random, choices c)
{
    if (c.format == WB_EXACT) {
        store_float32((float *)moments + i, x);
    } else {
        irow rounded = {i_add(v_bits(x.a), random.a), i_add(v_bits(x.b), random.b)};
        store_upper((uint16_t *)moments + i, rounded, order_of(c));
    }
}

/* The random words of a range's first row. An element's word is uniform and independent from step to step, because the
 * key is (random_key in update.c); within a step the words of a block are a Weyl sequence, evenly spread. */
FUNCTION irow random_row(uint32_t key, enum row_order order)
{
    irow positions = row_positions(order);
    ivector stride = i_set(WB_RANDOM_STRIDE), first = i_set(key);
    return (irow){i_add(first, i_mul(positions.a, stride)), i_add(first, i_mul(positions.b, stride))};
}

FUNCTION irow next_random_row(irow random)
{
    ivector stride = i_set(ROW * WB_RANDOM_STRIDE);
    return (irow){i_add(random.a, stride), i_add(random.b, stride)};
}

/* A row between its moments and its parameter. */
typedef struct {
    row exp_avg, root;
} pending_row;

FUNCTION pending_row moments_row(const wb_range *r, int64_t i, irow random, const vector_factors *f, choices c)
{
    row gradient = load_gradient(r, i, c);
    row exp_avg = load_moment(r->exp_avg, i, c);
    row exp_avg_sq = load_moment(r->exp_avg_sq, i, c);
    exp_avg = (row){new_exp_avg(exp_avg.a, gradient.a, f, c), new_exp_avg(exp_avg.b, gradient.b, f, c)};
    exp_avg_sq = (row){new_exp_avg_sq(exp_avg_sq.a, gradient.a, f, c),
                       new_exp_avg_sq(exp_avg_sq.b, gradient.b, f, c)};
    store_moment(r->exp_avg, i, exp_avg, (irow){i_lower(random.a), i_lower(random.b)}, c);
    store_moment(r->exp_avg_sq, i, exp_avg_sq, (irow){i_upper(random.a), i_upper(random.b)}, c);
    return (pending_row){exp_avg, {v_sqrt(exp_avg_sq.a), v_sqrt(exp_avg_sq.b)}};
}

FUNCTION void parameter_row(const wb_range *r, int64_t i, pending_row pending, const vector_factors *f, choices c)
{
    row parameter = load_parameter(r, i, c);
    parameter = (row){new_parameter(parameter.a, pending.exp_avg.a, pending.root.a, f, c),
                      new_parameter(parameter.b, pending.exp_avg.b, pending.root.b, f, c)};
    store_parameter(r, i, parameter, c);
}

/* A copy of a range's end, padded to whole rows with zeros, to be worked on in its stead. */
typedef struct {
    wb_range range;
    float gradient[WB_BLOCK], master[WB_BLOCK], exp_avg[WB_BLOCK], exp_avg_sq[WB_BLOCK];
    uint16_t high[WB_BLOCK];
    int16_t low[WB_BLOCK];
} padded_end;

/* `padded` elements are whole rows. */
static void take_end(padded_end *end, const wb_range *r, int64_t from, int64_t padded)
{
    size_t count = (size_t)(r->count - from), whole = (size_t)padded;
    size_t gradient_width = r->gradient_type == WB_FLOAT32 ? 4 : 2;
    size_t moment_width = WB_MOMENT_BYTES(r->state_format);
    memset(end->gradient, 0, whole * gradient_width);
    memset(end->exp_avg, 0, whole * moment_width);
    memset(end->exp_avg_sq, 0, whole * moment_width);
    if (r->master) {
        memset(end->master, 0, whole * sizeof(float));
    } else {
        memset(end->high, 0, whole * sizeof(uint16_t));
        memset(end->low, 0, whole * sizeof(int16_t));
    }
    end->range = *r;
    memcpy(end->gradient, (const char *)r->gradient + (size_t)from * gradient_width, count * gradient_width);
    memcpy(end->exp_avg, (const char *)r->exp_avg + (size_t)from * moment_width, count * moment_width);
    memcpy(end->exp_avg_sq, (const char *)r->exp_avg_sq + (size_t)from * moment_width, count * moment_width);
    end->range.gradient = end->gradient;
    end->range.exp_avg = end->exp_avg;
    end->range.exp_avg_sq = end->exp_avg_sq;
    if (r->master) {
        memcpy(end->master, r->master + from, count * sizeof(float));
        end->range.master = end->master;
    } else {
        memcpy(end->high, r->high + from, count * sizeof(uint16_t));
        memcpy(end->low, r->low + from, count * sizeof(int16_t));
        end->range.high = end->high;
        end->range.low = end->low;
    }
}

static void give_end(const padded_end *end, const wb_range *r, int64_t from)
{
    size_t count = (size_t)(r->count - from);
    size_t moment_width = WB_MOMENT_BYTES(r->state_format);
    memcpy((char *)r->exp_avg + (size_t)from * moment_width, end->exp_avg, count * moment_width);
    memcpy((char *)r->exp_avg_sq + (size_t)from * moment_width, end->exp_avg_sq, count * moment_width);
    if (r->master) {
        memcpy(r->master + from, end->master, count * sizeof(float));
    } else {
        memcpy(r->high + from, end->high, count * sizeof(uint16_t));
        memcpy(r->low + from, end->low, count * sizeof(int16_t));
    }
}

FUNCTION void adamw_end(const wb_range *r, int64_t from, irow random, const vector_factors *f, choices c)
{
    padded_end end;
    take_end(&end, r, from, ROW);
    parameter_row(&end.range, 0, moments_row(&end.range, 0, random, f, c), f, c);
    give_end(&end, r, from);
}

FUNCTION void adamw_loop(const wb_range *r, const wb_adamw_factors *factors, choices c)
{
    const wb_range range = *r;
    const vector_factors f = spread(factors, c);
    const int64_t whole = range.count / ROW * ROW;
    irow random = random_row(range.random_key, order_of(c));
    if (whole > 0) {
        pending_row pending = moments_row(&range, 0, random, &f, c);
        random = next_random_row(random);
        for (int64_t i = ROW; i < whole; i += ROW) {
            prefetch_moments(&range, i, c);
            prefetch_parameter(&range, i, c);
            pending_row next = moments_row(&range, i, random, &f, c);
            random = next_random_row(random);
            parameter_row(&range, i - ROW, pending, &f, c);
            pending = next;
        }
        parameter_row(&range, whole - ROW, pending, &f, c);
    }
    if (whole < r->count)
        adamw_end(r, whole, random, &f, c);
}

#include "compact_kernel.h"
#include "speculation_kernel.h"

/* ---- One function for each combination ---- */

#define LOOP(name, loop, ...)                                                                                          \
    SEPARATE_FUNCTION void name(const wb_range *r, const wb_adamw_factors *factors)                                    \
    {                                                                                                                  \
        loop(r, factors, (choices){__VA_ARGS__});                                                                      \
    }

LOOP(exact_plain_float32, adamw_loop, WB_FLOAT32, MASTER_PLAIN, WB_EXACT, 0)
LOOP(exact_split_float32, adamw_loop, WB_FLOAT32, MASTER_SPLIT, WB_EXACT, 0)
LOOP(exact_split_bfloat16, adamw_loop, WB_BFLOAT16, MASTER_SPLIT, WB_EXACT, 0)
LOOP(exact_plain_float32_from_gradient, adamw_loop, WB_FLOAT32, MASTER_PLAIN, WB_EXACT, 1)
LOOP(exact_split_float32_from_gradient, adamw_loop, WB_FLOAT32, MASTER_SPLIT, WB_EXACT, 1)
LOOP(exact_split_bfloat16_from_gradient, adamw_loop, WB_BFLOAT16, MASTER_SPLIT, WB_EXACT, 1)
LOOP(half_plain_float32, adamw_loop, WB_FLOAT32, MASTER_PLAIN, WB_HALF, 0)
LOOP(half_split_float32, adamw_loop, WB_FLOAT32, MASTER_SPLIT, WB_HALF, 0)
LOOP(half_split_bfloat16, adamw_loop, WB_BFLOAT16, MASTER_SPLIT, WB_HALF, 0)
LOOP(compact_plain_float32, compact_loop, WB_FLOAT32, MASTER_PLAIN, WB_COMPACT, 0)
LOOP(compact_split_float32, compact_loop, WB_FLOAT32, MASTER_SPLIT, WB_COMPACT, 0)
LOOP(compact_split_bfloat16, compact_loop, WB_BFLOAT16, MASTER_SPLIT, WB_COMPACT, 0)

typedef void (*adamw_function)(const wb_range *r, const wb_adamw_factors *factors);

FUNCTION adamw_function choose(const wb_range *r, adamw_function plain_float32, adamw_function split_float32,
                               adamw_function split_bfloat16)
{
    return r->master ? plain_float32 : r->gradient_type == WB_FLOAT32 ? split_float32 : split_bfloat16;
}

FUNCTION void adamw_kernel(const wb_range *r, const wb_adamw_factors *factors)
{
    adamw_function function;
    if (r->state_format == WB_HALF)
        function = choose(r, half_plain_float32, half_split_float32, half_split_bfloat16);
    else if (r->state_format == WB_COMPACT)
        function = choose(r, compact_plain_float32, compact_split_float32, compact_split_bfloat16);
    else if (factors->exp_avg_weight < 0.5f)
        function = choose(r, exact_plain_float32, exact_split_float32, exact_split_bfloat16);
    else
        function = choose(r, exact_plain_float32_from_gradient, exact_split_float32_from_gradient,
                          exact_split_bfloat16_from_gradient);
    function(r, factors);
}

SPECULATION(exact_plain_float32, WB_FLOAT32, MASTER_PLAIN, WB_EXACT, speculate_loop, undo_loop)
SPECULATION(exact_split_float32, WB_FLOAT32, MASTER_SPLIT, WB_EXACT, speculate_loop, undo_loop)
SPECULATION(exact_split_bfloat16, WB_BFLOAT16, MASTER_SPLIT, WB_EXACT, speculate_loop, undo_loop)
SPECULATION(half_plain_float32, WB_FLOAT32, MASTER_PLAIN, WB_HALF, speculate_loop, undo_loop)
SPECULATION(half_split_float32, WB_FLOAT32, MASTER_SPLIT, WB_HALF, speculate_loop, undo_loop)
SPECULATION(half_split_bfloat16, WB_BFLOAT16, MASTER_SPLIT, WB_HALF, speculate_loop, undo_loop)
SPECULATION(compact_plain_float32, WB_FLOAT32, MASTER_PLAIN, WB_COMPACT, compact_speculate_loop, compact_undo_loop)
SPECULATION(compact_split_float32, WB_FLOAT32, MASTER_SPLIT, WB_COMPACT, compact_speculate_loop, compact_undo_loop)
SPECULATION(compact_split_bfloat16, WB_BFLOAT16, MASTER_SPLIT, WB_COMPACT, compact_speculate_loop, compact_undo_loop)

#define CHOOSE(r, action, format)                                                                                      \
    choose(r, action##_##format##_plain_float32, action##_##format##_split_float32, action##_##format##_split_bfloat16)

FUNCTION void speculate_kernel(const wb_range *r, const wb_adamw_factors *factors)
{
    adamw_function function = r->state_format == WB_EXACT  ? CHOOSE(r, speculate, exact)
                              : r->state_format == WB_HALF ? CHOOSE(r, speculate, half)
                                                           : CHOOSE(r, speculate, compact);
    function(r, factors);
}

FUNCTION void undo_kernel(const wb_range *r, const wb_adamw_factors *factors)
{
    adamw_function function = r->state_format == WB_EXACT  ? CHOOSE(r, undo, exact)
                              : r->state_format == WB_HALF ? CHOOSE(r, undo, half)
                                                           : CHOOSE(r, undo, compact);
    function(r, factors);
}

#endif
