/* See tables.h. */
#include "tables.h"

#include <inttypes.h>

/* A whole parameter; the two halves of another; an empty one; one element; one without a gradient; and tails. */
static const int64_t counts[TABLE_PIECES] = {300001, 65536, 70003, 0, 1, 131079, 257, 16385};
#define HALVES 1
#define WITHOUT_GRADIENT 5

/* The two halves are pieces of one parameter. */
static int parameter_of(int piece)
{
    return piece == HALVES + 1 ? HALVES : piece;
}

table table_make(int64_t first)
{
    table t;
    int64_t partials = 0;
    for (int i = 0; i < TABLE_PIECES; i++) {
        parameter *p = &t.parameters[i];
        *p = parameter_make(combination_at(first + parameter_of(i) * 11), counts[i], 1);
        t.pieces[i] = p->piece;
        t.pieces[i].first_partial = partials;
        partials += (counts[i] + WB_PARTIAL_ELEMENTS - 1) / WB_PARTIAL_ELEMENTS;
    }
    t.pieces[HALVES + 1].offset = counts[HALVES];
    t.pieces[WITHOUT_GRADIENT].gradient = 0;
    t.partials = buffer_make((size_t)partials * sizeof(double), 0);
    return t;
}

void table_free(table *t)
{
    for (int i = 0; i < TABLE_PIECES; i++)
        parameter_free(&t->parameters[i]);
    buffer_free(&t->partials);
}

void table_fill(table *t, int64_t first)
{
    for (int i = 0; i < TABLE_PIECES; i++) {
        parameter_fill(&t->parameters[i], (uint64_t)(first + i));
        const wb_piece *whole = &t->parameters[parameter_of(i)].piece;
        t->pieces[i].step = whole->step;
        t->pieces[i].random_stream = whole->random_stream;
    }
}

void table_copy(table *to, const table *from)
{
    for (int i = 0; i < TABLE_PIECES; i++) {
        parameter_copy(&to->parameters[i], &from->parameters[i]);
        to->pieces[i].step = from->pieces[i].step;
        to->pieces[i].random_stream = from->pieces[i].random_stream;
    }
}

void table_work(table *t, wb_pool *pool, int64_t first, int coupled_decay, int at_once)
{
    wb_adamw settings = settings_of((uint64_t)first, coupled_decay);
    settings.eps = 1e-8; /* the seeds of the others may have given them new moments */
    double *partials = (double *)(void *)t->partials.start;
    for (int repeat = 0; repeat < 2; repeat++) {
        int64_t result = wb_update(pool, t->pieces, TABLE_PIECES, &settings, at_once ? partials : NULL);
        if (result != WB_OK)
            fail("wb_update returned %" PRId64, result);
        for (int i = 0; i < TABLE_PIECES; i++)
            t->pieces[i].step++;
    }
    if (!at_once && wb_sum_of_squares(pool, t->pieces, TABLE_PIECES, partials) != WB_OK)
        fail("wb_sum_of_squares failed");
}

void expect_equal_tables(const table *t, const table *expected, int coupled_decay, const char *who)
{
    for (int i = 0; i < TABLE_PIECES; i++)
        expect_equal(&t->parameters[i], &expected->parameters[i], coupled_decay, who);
    if (buffer_difference(&t->partials, &expected->partials) >= 0)
        fail("%s: partial sums of squares differ", who);
}
