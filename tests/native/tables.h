/* A table of pieces of several parameters, large enough that every thread of a pool gets slices of it. */
#ifndef WORKBENCH_TESTS_TABLES_H
#define WORKBENCH_TESTS_TABLES_H

#include "parameters.h"

#define TABLE_PIECES 8

typedef struct {
    parameter parameters[TABLE_PIECES]; /* piece by piece */
    wb_piece pieces[TABLE_PIECES];
    buffer partials; /* float64 */
} table;

/* The pieces' combinations begin with number `first`. */
table table_make(int64_t first);
void table_free(table *t);
void table_fill(table *t, int64_t first);
void table_copy(table *to, const table *from);
/* Two updates, and the sums of squares: `at_once` or in a call of their own. */
void table_work(table *t, wb_pool *pool, int64_t first, int coupled_decay, int at_once);
void expect_equal_tables(const table *t, const table *expected, int coupled_decay, const char *who);

#endif
