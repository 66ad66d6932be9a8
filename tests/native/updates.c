/* Updates of single pieces: every length and combination, in every instruction set the same bits as in scalar. */

#include "checks.h"
#include "parameters.h"

static void update(wb_pool *pool, parameter *p, const wb_adamw *settings)
{
    int64_t result = wb_update(pool, &p->piece, 1, settings, NULL);
    if (result != WB_OK)
        fail("wb_update returned %d", (int)result);
    p->piece.step++;
}

/* Two updates, so that the second starts from moments that the first has written. */
static parameter updated_twice(wb_pool *pool, combination of, int64_t count, int shift, uint64_t seed, int coupled)
{
    parameter p = parameter_make(of, count, shift);
    parameter_fill(&p, seed);
    wb_adamw settings = settings_of(seed, coupled);
    update(pool, &p, &settings);
    update(pool, &p, &settings);
    return p;
}

static int64_t compare_sets(wb_pool *const *pools, combination of, int64_t count, int coupled, uint64_t seed)
{
    int shift = (int)(seed % 4);
    int64_t compared = 0;
    parameter expected = updated_twice(pools[WB_SCALAR], of, count, 0, seed, coupled);
    for (int set = 0; set < INSTRUCTION_SETS; set++) {
        if (!pools[set] || (set == WB_SCALAR && shift == 0))
            continue;
        parameter p = updated_twice(pools[set], of, count, shift, seed, coupled);
        expect_equal(&p, &expected, coupled, set_names[set]);
        parameter_free(&p);
        compared++;
    }
    parameter_free(&expected);
    return compared;
}

static void make_pools(const options *chosen, wb_pool **pools)
{
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        pools[set] = chosen->use_set[set] ? pool_of(1, set) : NULL;
}

static void free_pools(wb_pool **pools)
{
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        if (pools[set])
            wb_pool_free(pools[set]);
}

int64_t check_tails(const options *chosen)
{
    wb_pool *pools[INSTRUCTION_SETS];
    make_pools(chosen, pools);
    int64_t compared = 0;
    for (int64_t count = 0; count <= TAIL_LENGTHS; count++)
        for (int64_t index = count % chosen->stride; index < 2 * COMBINATIONS; index += chosen->stride)
            compared += compare_sets(pools, combination_at(index), count, (int)(index / COMBINATIONS),
                                     (uint64_t)(count * 2 * COMBINATIONS + index));
    free_pools(pools);
    return compared;
}

/* What the results are is not promised, only that no code of exp_avg_sq is 0, from which the parameter would jump. On
 * AArch64, where instructions of both kinds treat a NaN alike, they are the bits of scalar in exact and half. */
static void expect_codes(const parameter *p, int set)
{
    for (int64_t i = 0; p->combination.state_format == WB_COMPACT && i < p->piece.count; i++)
        if (p->fields[EXP_AVG_SQ].start[i] == 0)
            fail("%s: a code of exp_avg_sq is 0 after gradients that are not finite", set_names[set]);
}

static parameter updated_by_spoiled_gradients(wb_pool *pool, int64_t index)
{
    wb_adamw settings = settings_of((uint64_t)index, (int)(index / COMBINATIONS));
    parameter p = parameter_make(combination_at(index), 517, 0);
    parameter_fill(&p, (uint64_t)index);
    parameter_spoil_gradient(&p);
    update(pool, &p, &settings);
    update(pool, &p, &settings);
    return p;
}

int64_t check_not_finite(const options *chosen)
{
    wb_pool *pools[INSTRUCTION_SETS];
    make_pools(chosen, pools);
    int64_t checked = 0;
    for (int64_t index = 0; index < 2 * COMBINATIONS; index++) {
        parameter expected = updated_by_spoiled_gradients(pools[WB_SCALAR], index);
        for (int set = 0; set < INSTRUCTION_SETS; set++) {
            if (!pools[set])
                continue;
            parameter p = updated_by_spoiled_gradients(pools[set], index);
            expect_codes(&p, set);
            if (set == WB_NEON && p.combination.state_format != WB_COMPACT)
                expect_equal(&p, &expected, (int)(index / COMBINATIONS), set_names[set]);
            parameter_free(&p);
            checked++;
        }
        parameter_free(&expected);
    }
    free_pools(pools);
    return checked;
}
