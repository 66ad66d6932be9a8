/* Updates ahead of a verdict: undone they leave the bits that were there, redone and completed those of one update. */

#include <stdlib.h>
#include <string.h>

#include "checks.h"
#include "kernels/kernels.h"
#include "parameters.h"

#define OTHER_SCALE 0.11f

static size_t records_bytes(int state_format, int64_t count)
{
    return (size_t)((count + WB_RECORD_ELEMENTS - 1) / WB_RECORD_ELEMENTS * wb_record_bytes(state_format));
}

/* Records begin at whole cache lines, and end where their memory does. */
static char *records_make(int state_format, int64_t count)
{
    size_t bytes = records_bytes(state_format, count);
    char *records = bytes ? aligned_alloc(64, bytes) : NULL;
    if (bytes && !records)
        fail("no memory for records");
    return records;
}

static void speculation(wb_pool *pool, parameter *p, const wb_adamw *settings, int action)
{
    int64_t left = -1;
    int64_t result = wb_speculation(pool, &p->piece, 1, settings, action, &left);
    if (result != WB_OK || left < 0 || left > p->piece.count)
        fail("wb_speculation returned %d, and left %d", (int)result, (int)left);
}

static void check_one(wb_pool *pool, combination of, int64_t count, uint64_t seed, int spoiled, const char *who)
{
    wb_adamw settings = settings_of(seed, seed % 11 == 0), other = settings;
    other.gradient_scale = OTHER_SCALE;
    other.speculated_scale = settings.speculated_scale = settings.gradient_scale;
    parameter p = parameter_make(of, count, (int)(seed % 4)), kept = parameter_make(of, count, 0);
    char *records = records_make(of.state_format, count);
    p.piece.records = (uintptr_t)records;
    parameter_fill(&p, seed);
    if (count % 4) /* else new moments: none is updated ahead */
        parameter_settle(&p, seed);
    if (spoiled)
        parameter_spoil_gradient(&p);
    kept.piece.step = p.piece.step;
    kept.piece.random_stream = p.piece.random_stream;
    /* The first time brings the emitted weights in line with their master. */
    for (int time = 0; time < 2; time++) {
        parameter_copy(&kept, &p);
        speculation(pool, &p, &settings, WB_SPECULATE);
        speculation(pool, &p, &settings, WB_UNDO);
        if (time || !kept.fields[EMIT].bytes)
            expect_equal(&p, &kept, settings.coupled_decay, who);
    }
    if (!spoiled) {
        parameter start = parameter_make(of, count, 0);
        parameter_copy(&start, &kept);
        if (wb_update(pool, &kept.piece, 1, &other, NULL) != WB_OK)
            fail("wb_update failed");
        speculation(pool, &p, &settings, WB_SPECULATE);
        speculation(pool, &p, &other, WB_REDO);
        expect_equal(&p, &kept, settings.coupled_decay, who);
        parameter_copy(&p, &start);
        parameter_copy(&kept, &start);
        wb_update(pool, &kept.piece, 1, &settings, NULL);
        speculation(pool, &p, &settings, WB_SPECULATE);
        speculation(pool, &p, &settings, WB_COMPLETE);
        expect_equal(&p, &kept, settings.coupled_decay, who);
        parameter_free(&start);
    }
    free(records);
    parameter_free(&p);
    parameter_free(&kept);
}

static wb_record *speculated(wb_pool *pool, parameter *p, uint64_t seed, const wb_adamw *settings)
{
    char *records = records_make(p->piece.state_format, p->piece.count);
    if (records)
        memset(records, 0, records_bytes(p->piece.state_format, p->piece.count));
    p->piece.records = (uintptr_t)records;
    parameter_fill(p, seed);
    parameter_settle(p, seed);
    speculation(pool, p, settings, WB_SPECULATE);
    return (wb_record *)(void *)records;
}

/* The arrays of a record, one after the other: bytes an element. */
static const size_t widths[][3] = {[WB_EXACT] = {4}, [WB_HALF] = {2, 1}, [WB_COMPACT] = {1, 1, 1}};

/* Residues have the bits of scalar's as far as both could update, but for elements that are kept whole; how far that
 * is, which is returned, depends on the length of a row. */
static int64_t compare_records(wb_pool *scalar, wb_pool *pool, combination of, int64_t count, uint64_t seed,
                               const char *who)
{
    const wb_adamw settings = settings_of(seed, 0);
    int64_t ahead = 0;
    parameter p = parameter_make(of, count, 0);
    wb_record *expected = speculated(scalar, &p, seed, &settings), *records = speculated(pool, &p, seed, &settings);
    for (int64_t i = 0; i * WB_RECORD_ELEMENTS < count; i++) {
        const size_t place = (size_t)(i * wb_record_bytes(of.state_format));
        wb_record *a = (wb_record *)(void *)((char *)expected + place), *b = (wb_record *)(void *)((char *)records + place);
        const uint32_t done = a->done < b->done ? a->done : b->done;
        uint8_t *of_scalar = a->residues, *found = b->residues;
        for (int array = 0; array < 3 && widths[of.state_format][array]; array++) {
            const size_t width = widths[of.state_format][array];
            for (uint32_t n = 0; n < a->escapes; n++)
                memcpy(of_scalar + width * a->old[n].element, found + width * a->old[n].element, width);
            if (memcmp(of_scalar, found, width * done) != 0)
                fail("%s: a record of %lld elements differs", who, (long long)count);
            of_scalar += width * WB_RECORD_ELEMENTS;
            found += width * WB_RECORD_ELEMENTS;
        }
        ahead += done;
    }
    free(expected);
    free(records);
    parameter_free(&p);
    return ahead;
}

int64_t check_speculation(const options *chosen)
{
    int64_t checked = 0, ahead[3] = {0};
    wb_pool *scalar = pool_of(1, WB_SCALAR);
    for (int set = 0; set < INSTRUCTION_SETS; set++) {
        if (!chosen->use_set[set])
            continue;
        wb_pool *pool = pool_of(1 + set % 2, set);
        /* Around the ends of rows, of a record and of two. */
        for (int64_t around = 0; around <= 2 * WB_RECORD_ELEMENTS; around += WB_RECORD_ELEMENTS)
            for (int64_t count = around < 70 ? 0 : around - 70; count <= around + 70; count++)
                for (int64_t index = count % chosen->stride; index < COMBINATIONS; index += chosen->stride) {
                    uint64_t seed = (uint64_t)(count * COMBINATIONS + index);
                    check_one(pool, combination_at(index), count, seed, count % 5 == 4, set_names[set]);
                    ahead[combination_at(index).state_format] +=
                        compare_records(scalar, pool, combination_at(index), count, seed, set_names[set]);
                    checked++;
                }
        wb_pool_free(pool);
    }
    wb_pool_free(scalar);
    if (!ahead[WB_EXACT] || !ahead[WB_HALF] || !ahead[WB_COMPACT])
        fail("nothing was updated ahead in one of the formats");
    return checked;
}
