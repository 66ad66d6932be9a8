/* Faults on purpose, each through the interface: what shows that a sanitizer is at work, and that it sees into the
 * native code. */
#include <pthread.h>
#include <string.h>

#include "checks.h"
#include "parameters.h"

/* One byte beyond a buffer is read. */
static void overrun(wb_pool *pool)
{
    buffer source = buffer_make(100, 0), destination = buffer_make(101, 0);
    buffer_fill(&source, 0);
    wb_copy(pool, address_of(&destination), address_of(&source), 101);
    buffer_free(&source);
    buffer_free(&destination);
}

/* Several, so that no register happens to keep the last one reachable. */
static void leak(void)
{
    for (int i = 0; i < 10; i++) {
        buffer forgotten = buffer_make(1000, 0);
        buffer_fill(&forgotten, 0);
    }
}

typedef struct {
    wb_pool *pool;
    const buffer *source;
    const buffer *destination;
} accumulation;

static void *accumulate(void *argument)
{
    const accumulation *a = argument;
    wb_accumulate(a->pool, address_of(a->destination), address_of(a->source), WB_FLOAT32, 1000, 0);
    return NULL;
}

/* Two pools write the same numbers; neither waits for the other. */
static void race(wb_pool *pool)
{
    wb_pool *another = pool_of(1, WB_SCALAR);
    buffer source = buffer_make(4000, 0), shared = buffer_make(4000, 0);
    memset(source.start, 0, source.bytes);
    memset(shared.start, 0, shared.bytes);
    accumulation here = {pool, &source, &shared}, there = {another, &source, &shared};
    pthread_t thread;
    if (pthread_create(&thread, NULL, accumulate, &there) != 0)
        fail("no thread");
    accumulate(&here);
    pthread_join(thread, NULL);
    wb_pool_free(another);
    buffer_free(&source);
    buffer_free(&shared);
}

/* Floats that are not aligned to their size. */
static void undefined(wb_pool *pool)
{
    buffer source = buffer_make(40, 1), destination = buffer_make(40, 1);
    memset(source.start, 0, source.bytes);
    memset(destination.start, 0, destination.bytes);
    wb_accumulate(pool, address_of(&destination), address_of(&source), WB_FLOAT32, 10, 0);
    buffer_free(&source);
    buffer_free(&destination);
}

/* The result depends on bytes that nobody wrote. */
static void uninitialized(wb_pool *pool)
{
    buffer source = buffer_make(40, 0);
    wb_piece piece = {.count = 10, .gradient = address_of(&source), .gradient_type = WB_FLOAT32};
    double partial = 0;
    wb_sum_of_squares(pool, &piece, 1, &partial);
    if (partial == 1)
        fail("a coincidence");
    buffer_free(&source);
}

int commit_fault(const char *name)
{
    wb_pool *pool = pool_of(1, WB_SCALAR);
    if (strcmp(name, "overrun") == 0)
        overrun(pool);
    else if (strcmp(name, "leak") == 0)
        leak();
    else if (strcmp(name, "race") == 0)
        race(pool);
    else if (strcmp(name, "undefined") == 0)
        undefined(pool);
    else if (strcmp(name, "uninitialized") == 0)
        uninitialized(pool);
    else
        fail("there is no fault %s", name);
    wb_pool_free(pool);
    return 0;
}
