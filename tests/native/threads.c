/* Pools under use from several threads, stopped, made and freed, and across fork: always the bits of one thread. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"
#include "tables.h"

#define FIRST_COMBINATION 5

/* A thread that works on its own table with somebody's pool, again and again. */
typedef struct {
    wb_pool *pool;
    const table *original;
    const table *expected;
    const char *who;
    int repeats;
    pthread_barrier_t *begin; /* or NULL */
    pthread_t thread;
} worker;

static void work_once(wb_pool *pool, const table *original, const table *expected, const char *who)
{
    table t = table_make(FIRST_COMBINATION);
    table_copy(&t, original);
    table_work(&t, pool, FIRST_COMBINATION, 0, 1);
    expect_equal_tables(&t, expected, 0, who);
    table_free(&t);
}

static void *worker_main(void *argument)
{
    const worker *w = argument;
    if (w->begin)
        pthread_barrier_wait(w->begin);
    for (int i = 0; i < w->repeats; i++)
        work_once(w->pool, w->original, w->expected, w->who);
    return NULL;
}

static void start(worker *w)
{
    if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
        fail("no thread");
}

static int64_t use_at_once(wb_pool *first, wb_pool *second, int repeats, const table *original,
                           const table *expected, const char *who)
{
    worker workers[2] = {{first, original, expected, who, repeats, NULL, 0},
                         {second, original, expected, who, repeats, NULL, 0}};
    start(&workers[0]);
    start(&workers[1]);
    pthread_join(workers[0].thread, NULL);
    pthread_join(workers[1].thread, NULL);
    return 2 * repeats;
}

/* The pool is stopped while a thread is using it: that thread goes on alone. */
static int64_t stop_under_use(int set, int repeats, const table *original, const table *expected)
{
    wb_pool *pool = pool_of(3, set);
    pthread_barrier_t begin;
    pthread_barrier_init(&begin, NULL, 2);
    worker w = {pool, original, expected, "a pool that is being stopped", repeats, &begin, 0};
    start(&w);
    pthread_barrier_wait(&begin);
    wb_pool_stop(pool);
    pthread_join(w.thread, NULL);
    work_once(pool, original, expected, "a stopped pool");
    wb_pool_stop(pool);
    wb_pool_free(pool);
    pthread_barrier_destroy(&begin);
    return repeats + 1;
}

static int64_t make_and_free(int set)
{
    for (int i = 0; i < 1000; i++)
        wb_pool_free(pool_of(1 + i % 4, set));
    return 1000;
}

/* The table names the piece that lacks a step, and nothing is written. */
static void expect_refusal(wb_pool *pool, const table *original)
{
    table t = table_make(FIRST_COMBINATION);
    wb_adamw settings = settings_of(0, 0);
    table_copy(&t, original);
    t.pieces[2].step = 0;
    if (wb_update(pool, t.pieces, TABLE_PIECES, &settings, NULL) != 3)
        fail("a step of 0 in the third piece was not refused");
    for (int i = 0; i < TABLE_PIECES; i++)
        expect_equal(&t.parameters[i], &original->parameters[i], 0, "after a refusal");
    table_free(&t);
}

int64_t check_threads(const options *chosen)
{
    table original = table_make(FIRST_COMBINATION), expected = table_make(FIRST_COMBINATION);
    wb_pool *alone = pool_of(1, WB_SCALAR);
    table_fill(&original, FIRST_COMBINATION);
    table_copy(&expected, &original);
    table_work(&expected, alone, FIRST_COMBINATION, 0, 0);
    expect_refusal(alone, &original);
    wb_pool_free(alone);
    int64_t compared = 0;
    for (int set = 0; set < INSTRUCTION_SETS; set++) {
        if (!chosen->use_set[set])
            continue;
        wb_pool *first = pool_of(2, set), *second = pool_of(3, set);
        compared += use_at_once(first, second, chosen->repeats, &original, &expected, "two pools at once");
        compared += use_at_once(second, second, chosen->repeats, &original, &expected, "two threads on one pool");
        wb_pool_free(first);
        wb_pool_free(second);
        compared += stop_under_use(set, chosen->repeats, &original, &expected);
    }
    compared += make_and_free(WB_SCALAR);
    table_free(&original);
    table_free(&expected);
    return compared;
}

/* The child has none of the pool's threads, and leaves without ending what the parent made. */
static void expect_good_child(wb_pool *pool, const table *original, const table *expected)
{
    pid_t child = fork();
    if (child < 0)
        fail("fork failed");
    if (child == 0) {
        alarm(300); /* a child that hangs must not outlive the check */
        work_once(pool, original, expected, "in a forked child");
        work_once(pool, original, expected, "again in a forked child");
        wb_pool_free(pool);
        wb_pool *another = pool_of(2, WB_SCALAR);
        work_once(another, original, expected, "a forked child's own pool");
        wb_pool_free(another);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("a forked child ended with status %#x", (unsigned)status);
}

int64_t check_forks(const options *chosen)
{
    if (!chosen->fork)
        return 0;
    table original = table_make(FIRST_COMBINATION), expected = table_make(FIRST_COMBINATION);
    wb_pool *alone = pool_of(1, WB_SCALAR), *pool = pool_of(3, WB_SCALAR);
    table_fill(&original, FIRST_COMBINATION);
    table_copy(&expected, &original);
    table_work(&expected, alone, FIRST_COMBINATION, 0, 0);

    expect_good_child(pool, &original, &expected); /* before its first call */
    work_once(pool, &original, &expected, "a parent after a fork");
    worker w = {pool, &original, &expected, "a parent that forks in the meantime", chosen->repeats, NULL, 0};
    start(&w);
    for (int i = 0; i < chosen->repeats; i++)
        expect_good_child(pool, &original, &expected);
    pthread_join(w.thread, NULL);
    work_once(pool, &original, &expected, "a parent after forks");

    wb_pool_free(alone);
    wb_pool_free(pool);
    table_free(&original);
    table_free(&expected);
    return 2 + 4 * (1 + chosen->repeats);
}
