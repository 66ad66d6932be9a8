/* A persistent pool of threads that share out the slices of one call at a time.
 *
 * Who may touch what: between pool_enter and pool_leave the calling thread owns the pool; several threads may
 * call, one after the other. The slices of a call must not depend on each other.
 */
#ifndef WORKBENCH_POOL_H
#define WORKBENCH_POOL_H

#include <stddef.h>

#include "kernels/kernels.h"

/* Slices begin at multiples of this many elements: whole cache lines of every type, whole blocks of compact state. */
#define POOL_GRAIN 256

typedef void (*pool_task)(void *context, int64_t slice);

void pool_enter(wb_pool *pool);
void pool_leave(wb_pool *pool);

const wb_kernels *pool_kernels(const wb_pool *pool);

/* Memory that lasts until pool_leave, or NULL. One block per call. */
void *pool_scratch(wb_pool *pool, size_t bytes);

/* Into how many slices work on `elements` should be cut: 1 where it is too little to wake anyone. */
int64_t pool_slices(const wb_pool *pool, int64_t elements);

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* An even share of `elements`, in whole grains. */
static inline int64_t pool_slice_length(int64_t elements, int64_t slices)
{
    int64_t even = (elements + slices - 1) / slices;
    return (even + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN;
}

/* Runs task(context, 0 .. slices - 1) on the calling thread and all that wake in time, and returns when all are done. */
void pool_run(wb_pool *pool, int64_t slices, pool_task task, void *context);

#endif
