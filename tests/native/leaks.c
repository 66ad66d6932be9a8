/* Nothing grows: neither over a million tiny updates nor over pools made and freed. */
#include <stdio.h>

#include "checks.h"
#include "parameters.h"

#define ALLOWED_KIB 256

/* The process's resident set, or -1 where the system does not tell. */
static long resident_kib(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (status && kib < 0 && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld kB", &kib) != 1)
            kib = -1;
    if (status)
        fclose(status);
    return kib;
}

static void tiny_updates(wb_pool *pool, parameter *p, int64_t updates)
{
    wb_adamw settings = settings_of(1, 0);
    for (int64_t i = 0; i < updates; i++, p->piece.step++)
        if (wb_update(pool, &p->piece, 1, &settings, NULL) != WB_OK)
            fail("wb_update failed");
}

static void pools(int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        wb_pool_free(pool_of(3, WB_SCALAR));
}

int64_t check_leaks(const options *chosen)
{
    parameter p = parameter_make(combination_at(0), 8, 0);
    parameter_fill(&p, 1);
    wb_pool *pool = pool_of(2, WB_SCALAR);
    tiny_updates(pool, &p, 1000);
    pools(100);
    long before = resident_kib();
    tiny_updates(pool, &p, chosen->updates);
    pools(1000);
    long grown = resident_kib() - before;
    if (grown > ALLOWED_KIB)
        fail("the resident set grew by %ld KiB", grown);
    wb_pool_free(pool);
    parameter_free(&p);
    return chosen->updates;
}
