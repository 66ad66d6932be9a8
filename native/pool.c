/* The pool's threads: created with the pool, asleep between calls, gone in a forked child and started again there
 * by its first call, ended by wb_pool_stop. They take no signals and never touch Python. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "float_environment.h"

/* Less work than this is not worth handing to a thread that watches, or waking one that sleeps. */
#define SLICE_ELEMENTS 16384
#define WAKE_ELEMENTS 131072
/* More slices than threads, so that a thread that lost its core does not hold up the rest. */
#define SLICES_PER_THREAD 4
/* How long a thread watches for the next call, and a caller for the end of this one, before it sleeps: about what waking
 * from sleep costs, so that calls close together lose less than twice that. */
#define WATCH_NS 50000

struct wb_pool {
    const wb_kernels *kernels;
    int wanted; /* threads besides the caller */
    int stopped;

    pthread_mutex_t call; /* held from pool_enter to pool_leave */
    void *scratch;
    size_t scratch_bytes;

    pthread_mutex_t lock; /* guards what follows, up to `next` */
    pthread_cond_t work;
    pthread_cond_t done;
    pthread_t *threads;
    int running; /* threads that exist */
    int ending;
    uint64_t calls;
    pool_task task;
    void *context;
    int64_t slices; /* 0 between calls: a thread that wakes too late for one finds nothing to join */

    /* Written under the lock as well; read without it by who watches. */
    atomic_int joined;       /* threads at work on the present call, besides its caller */
    atomic_ullong announced; /* calls, or a number never reached by them when the threads are to end */
    atomic_int watching;     /* threads that would see a call at once */

    atomic_llong next;

    wb_pool *newer, *older; /* the list of all pools, which the fork handlers walk */
};

typedef struct {
    wb_pool *pool;
    int number;
    uint64_t calls_seen;
} thread_start;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;
static wb_pool *newest;

static void make_locks(wb_pool *pool)
{
    pthread_mutex_init(&pool->call, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
}

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&list_lock);
}

/* Only the thread that forked lives on here. Whatever others held or were about to change is made again; a
 * scratch block that one of them may have been growing is given up. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&list_lock, NULL);
    for (wb_pool *pool = newest; pool; pool = pool->older) {
        make_locks(pool);
        pool->running = 0;
        atomic_store(&pool->joined, 0);
        atomic_store(&pool->watching, 0);
        pool->slices = 0;
        atomic_store(&pool->announced, pool->calls);
        pool->ending = 0;
        pool->scratch = NULL;
        pool->scratch_bytes = 0;
    }
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Only a hint: what is waited for is looked at again under the lock. */
static void watch_for_call(wb_pool *pool, uint64_t seen)
{
    const int64_t end = now_ns() + WATCH_NS;
    atomic_fetch_add_explicit(&pool->watching, 1, memory_order_relaxed);
    while (atomic_load_explicit(&pool->announced, memory_order_relaxed) == seen && now_ns() < end)
        relax();
    atomic_fetch_sub_explicit(&pool->watching, 1, memory_order_relaxed);
}

static void watch_for_end(wb_pool *pool)
{
    const int64_t end = now_ns() + WATCH_NS;
    while (atomic_load_explicit(&pool->joined, memory_order_relaxed) > 0 && now_ns() < end)
        relax();
}

static void take_slices(wb_pool *pool)
{
    uint64_t environment = float_environment_begin();
    for (;;) {
        int64_t slice = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (slice >= pool->slices)
            break;
        pool->task(pool->context, slice);
    }
    float_environment_end(environment);
}

/* By its creator where the system lets one thread name another, so that no thread is ever seen without its name. */
static void name_thread(pthread_t thread, int number)
{
    char name[16]; /* the kernel's limit, with the final zero: four digits have room */
    snprintf(name, sizeof name, "host-adam/%u", (unsigned)number % 10000);
#if defined(__linux__)
    pthread_setname_np(thread, name);
#elif defined(__APPLE__)
    if (pthread_equal(thread, pthread_self()))
        pthread_setname_np(name);
#endif
}

static void *thread_main(void *argument)
{
    thread_start start = *(thread_start *)argument;
    free(argument);
    wb_pool *pool = start.pool;
    uint64_t seen = start.calls_seen;
    name_thread(pthread_self(), start.number);

    for (;;) {
        watch_for_call(pool, seen);
        pthread_mutex_lock(&pool->lock);
        while (!pool->ending && pool->calls == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->ending)
            break;
        seen = pool->calls;
        if (pool->slices > 0) {
            atomic_fetch_add_explicit(&pool->joined, 1, memory_order_relaxed);
            pthread_mutex_unlock(&pool->lock);
            take_slices(pool);
            pthread_mutex_lock(&pool->lock);
            if (atomic_fetch_sub_explicit(&pool->joined, 1, memory_order_relaxed) == 1)
                pthread_cond_signal(&pool->done);
        }
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Brings the pool up to its number of threads. Where the system refuses one, the others and the caller do the work. */
static void start_threads(wb_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->running < pool->wanted) {
        thread_start *start = malloc(sizeof *start);
        if (!start)
            break;
        *start = (thread_start){pool, pool->running + 1, pool->calls};
        if (pthread_create(&pool->threads[pool->running], NULL, thread_main, start) != 0) {
            free(start);
            break;
        }
        pool->running++;
        name_thread(pool->threads[pool->running - 1], pool->running);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

wb_pool *wb_pool_create(int threads, int instruction_set)
{
    const wb_kernels *kernels = wb_kernels_for(instruction_set);
    if (!kernels || threads < 1)
        return NULL;
    wb_pool *pool = calloc(1, sizeof *pool);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    if (!pool || !ids) {
        free(pool);
        free(ids);
        return NULL;
    }
    pool->kernels = kernels;
    pool->wanted = threads - 1;
    pool->threads = ids;
    make_locks(pool);

    pthread_once(&fork_handlers, install_fork_handlers);
    pthread_mutex_lock(&list_lock);
    pool->older = newest;
    if (newest)
        newest->newer = pool;
    newest = pool;
    pthread_mutex_unlock(&list_lock);

    start_threads(pool);
    return pool;
}

void wb_pool_stop(wb_pool *pool)
{
    pthread_mutex_lock(&pool->call);
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    atomic_store_explicit(&pool->announced, UINT64_MAX, memory_order_relaxed);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->running; i++)
        pthread_join(pool->threads[i], NULL);
    pool->running = 0;
    pool->stopped = 1;
    pthread_mutex_unlock(&pool->call);
}

void wb_pool_free(wb_pool *pool)
{
    wb_pool_stop(pool);
    pthread_mutex_lock(&list_lock);
    if (pool->newer)
        pool->newer->older = pool->older;
    else
        newest = pool->older;
    if (pool->older)
        pool->older->newer = pool->newer;
    pthread_mutex_unlock(&list_lock);

    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->call);
    free(pool->scratch);
    free(pool->threads);
    free(pool);
}

void pool_enter(wb_pool *pool)
{
    pthread_mutex_lock(&pool->call);
    if (pool->running < pool->wanted && !pool->stopped)
        start_threads(pool);
}

void pool_leave(wb_pool *pool)
{
    pthread_mutex_unlock(&pool->call);
}

const wb_kernels *pool_kernels(const wb_pool *pool)
{
    return pool->kernels;
}

void *pool_scratch(wb_pool *pool, size_t bytes)
{
    if (bytes > pool->scratch_bytes) {
        free(pool->scratch);
        pool->scratch = malloc(bytes);
        pool->scratch_bytes = pool->scratch ? bytes : 0;
    }
    return pool->scratch;
}

int64_t pool_slices(const wb_pool *pool, int64_t elements)
{
    int64_t threads = pool->running + 1;
    int64_t most = threads == 1 ? 1 : threads * SLICES_PER_THREAD;
    if (elements < WAKE_ELEMENTS && atomic_load_explicit(&pool->watching, memory_order_relaxed) == 0)
        return 1;
    int64_t slices = elements / SLICE_ELEMENTS;
    return slices < 1 ? 1 : slices > most ? most : slices;
}

void pool_run(wb_pool *pool, int64_t slices, pool_task task, void *context)
{
    if (slices <= 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->task = task;
    pool->context = context;
    pool->slices = slices;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (slices > 1 && pool->running > 0) {
        pool->calls++;
        atomic_store_explicit(&pool->announced, pool->calls, memory_order_relaxed);
        pthread_cond_broadcast(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);

    take_slices(pool);

    /* Every slice is taken. Those who took some are waited for; who has not woken yet is not. */
    watch_for_end(pool);
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->joined, memory_order_relaxed) > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pool->slices = 0;
    pthread_mutex_unlock(&pool->lock);
}
