/* Large tables: several pieces, slices for every thread. Instruction sets and numbers of threads show in no bit. */
#include <stdio.h>

#include "checks.h"
#include "tables.h"

static const int thread_counts[] = {1, 2, 3, 5};

/* All pools of the check, made once. */
typedef struct {
    wb_pool *pools[INSTRUCTION_SETS][sizeof thread_counts / sizeof *thread_counts];
} pool_grid;

#define THREAD_COUNTS ((int)(sizeof thread_counts / sizeof *thread_counts))

static pool_grid make_pools(const options *chosen)
{
    pool_grid grid = {0};
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        for (int i = 0; chosen->use_set[set] && i < THREAD_COUNTS; i++)
            grid.pools[set][i] = pool_of(thread_counts[i], set);
    return grid;
}

static void free_pools(pool_grid *grid)
{
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        for (int i = 0; i < THREAD_COUNTS; i++)
            if (grid->pools[set][i])
                wb_pool_free(grid->pools[set][i]);
}

static int64_t compare_pools(const pool_grid *grid, int64_t first, int coupled_decay)
{
    table original = table_make(first), expected = table_make(first), t = table_make(first);
    table_fill(&original, first);
    table_copy(&expected, &original);
    table_work(&expected, grid->pools[WB_SCALAR][0], first, coupled_decay, 0);
    int64_t compared = 0;
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        for (int i = 0; i < THREAD_COUNTS; i++) {
            if (!grid->pools[set][i])
                continue;
            for (int at_once = 0; at_once < 2; at_once++) {
                char who[64];
                snprintf(who, sizeof who, "%s, %d threads%s", set_names[set], thread_counts[i],
                         at_once ? ", measured on the way" : "");
                table_copy(&t, &original);
                table_work(&t, grid->pools[set][i], first, coupled_decay, at_once);
                expect_equal_tables(&t, &expected, coupled_decay, who);
                compared++;
            }
        }
    table_free(&original);
    table_free(&expected);
    table_free(&t);
    return compared;
}

int64_t check_large(const options *chosen)
{
    pool_grid grid = make_pools(chosen);
    int64_t compared = 0;
    for (int64_t index = 0; index < 2 * COMBINATIONS; index += chosen->stride)
        compared += compare_pools(&grid, index % COMBINATIONS, (int)(index / COMBINATIONS));
    free_pools(&grid);
    return compared;
}
