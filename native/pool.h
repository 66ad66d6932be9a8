/* A persistent pool of threads that share out the slices of one call at a time.
 *
 * Who may touch what: between pool_enter and pool_leave the calling thread owns the pool; several threads may
 * call, one after the other. The slices of a call must not depend on each other.
 */
#ifndef WORKBENCH_POOL_H
#define WORKBENCH_POOL_H

#include <stddef.h>

#include "kernels.h"

typedef void (*pool_task)(void *context, int64_t slice);

void pool_enter(wb_pool *pool);
void pool_leave(wb_pool *pool);

const wb_kernels *pool_kernels(const wb_pool *pool);

/* Memory that lasts until pool_leave, or NULL. One block per call. */
void *pool_scratch(wb_pool *pool, size_t bytes);

/* Into how many slices work on `elements` should be cut: 1 where it is too little to wake anyone. */
int64_t pool_slices(const wb_pool *pool, int64_t elements);

/* Runs task(context, 0 .. slices - 1), on all threads and the calling one, and returns when all are done. */
void pool_run(wb_pool *pool, int64_t slices, pool_task task, void *context);

#endif
