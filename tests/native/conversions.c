/* Conversions, copies and sums: every length, every instruction set the same bits as scalar, and back again. */
#include <math.h>
#include <string.h>

#include "checks.h"

#define LARGE 300007

typedef struct {
    wb_pool *scalar, *pool;
    const char *name;
    int64_t compared;
} subject;

static void expect_same(subject *s, const buffer *result, const buffer *expected, const char *call, int64_t count)
{
    if (buffer_difference(result, expected) >= 0)
        fail("%s: %s of %lld elements differs", s->name, call, (long long)count);
    s->compared++;
}

static void fill_numbers(buffer *b, int type, uint64_t seed)
{
    uint64_t state = seeded(seed);
    for (size_t at = 0; at < b->bytes; at += width_of(type)) {
        uint16_t half = next_float16(&state);
        uint32_t bits = bits_of_float(next_float(&state, 40));
        if (type == WB_FLOAT16)
            memcpy(b->start + at, &half, 2);
        else
            memcpy(b->start + at, (char *)&bits + (type == WB_BFLOAT16 ? 2 : 0), width_of(type));
    }
}

static void accumulate(subject *s, int type, int overwrite, int64_t count)
{
    size_t elements = (size_t)count;
    buffer source = buffer_make(elements * width_of(type), width_of(type));
    buffer result = buffer_make(elements * 4, 4), expected = buffer_make(elements * 4, 0);
    fill_numbers(&source, type, (uint64_t)count);
    fill_numbers(&result, WB_FLOAT32, (uint64_t)count + 1);
    fill_numbers(&expected, WB_FLOAT32, (uint64_t)count + 1);
    wb_accumulate(s->pool, address_of(&result), address_of(&source), type, count, overwrite);
    wb_accumulate(s->scalar, address_of(&expected), address_of(&source), type, count, overwrite);
    expect_same(s, &result, &expected, "wb_accumulate", count);
    buffer_free(&source);
    buffer_free(&result);
    buffer_free(&expected);
}

/* Of any bit pattern, NaNs too. */
static void narrow(subject *s, int type, int64_t count)
{
    size_t elements = (size_t)count;
    buffer source = buffer_make(elements * 4, 4);
    buffer result = buffer_make(elements * 2, 2), expected = buffer_make(elements * 2, 0);
    buffer_fill(&source, (uint64_t)count);
    wb_narrow(s->pool, address_of(&result), type, address_of(&source), count);
    wb_narrow(s->scalar, address_of(&expected), type, address_of(&source), count);
    expect_same(s, &result, &expected, "wb_narrow", count);
    buffer_free(&source);
    buffer_free(&result);
    buffer_free(&expected);
}

/* Random patterns, and the edges of bfloat16's rounding with each exponent. */
static void fill_patterns(buffer *b, int64_t count)
{
    static const uint32_t edges[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x7f8000, 0x7fffff};
    buffer_fill(b, (uint64_t)count);
    for (int64_t i = 0; i < count && i < 4096; i++) {
        uint32_t bits = (uint32_t)(i / 8) << 23 | edges[i % 8];
        memcpy(b->start + 4 * i, &bits, 4);
    }
}

static void split_and_join(subject *s, int64_t count)
{
    size_t elements = (size_t)count;
    buffer source = buffer_make(elements * 4, 4), back = buffer_make(elements * 4, 4);
    buffer high = buffer_make(elements * 2, 2), low = buffer_make(elements * 2, 2);
    buffer expected_high = buffer_make(elements * 2, 0), expected_low = buffer_make(elements * 2, 0);
    fill_patterns(&source, count);
    wb_split(s->pool, address_of(&source), address_of(&high), address_of(&low), count);
    wb_split(s->scalar, address_of(&source), address_of(&expected_high), address_of(&expected_low), count);
    expect_same(s, &high, &expected_high, "wb_split (high)", count);
    expect_same(s, &low, &expected_low, "wb_split (low)", count);
    wb_join(s->pool, address_of(&high), address_of(&low), address_of(&back), count);
    expect_same(s, &back, &source, "wb_join after wb_split", count);
    buffer *all[] = {&source, &back, &high, &low, &expected_high, &expected_low};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
}

static void copy(subject *s, int64_t bytes)
{
    buffer source = buffer_make((size_t)bytes, 1), result = buffer_make((size_t)bytes, 3);
    buffer_fill(&source, (uint64_t)bytes);
    buffer_fill(&result, (uint64_t)bytes + 1);
    wb_copy(s->pool, address_of(&result), address_of(&source), bytes);
    expect_same(s, &result, &source, "wb_copy", bytes);
    buffer_free(&source);
    buffer_free(&result);
}

static double value_of(const buffer *b, int type, int64_t i)
{
    uint32_t bits = 0;
    memcpy((char *)&bits + (type == WB_BFLOAT16 ? 2 : 0), b->start + (size_t)i * width_of(type), width_of(type));
    if (type != WB_FLOAT16)
        return (double)float_of_bits(bits);
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
    return exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
}

/* Against scalar bit for bit, and against a plain sum. */
static void sum(subject *s, int type, int64_t count)
{
    buffer source = buffer_make((size_t)count * width_of(type), width_of(type));
    fill_numbers(&source, type, (uint64_t)count);
    size_t partials = (size_t)((count + WB_PARTIAL_ELEMENTS - 1) / WB_PARTIAL_ELEMENTS) * sizeof(double);
    buffer result = buffer_make(partials, 0), expected = buffer_make(partials, 0);
    wb_piece piece = {.count = count, .gradient = address_of(&source), .gradient_type = type};
    wb_sum_of_squares(s->pool, &piece, 1, (double *)(void *)result.start);
    wb_sum_of_squares(s->scalar, &piece, 1, (double *)(void *)expected.start);
    expect_same(s, &result, &expected, "wb_sum_of_squares", count);

    double total = 0, plain = 0;
    for (size_t i = 0; i < partials / sizeof(double); i++)
        total += ((double *)(void *)result.start)[i];
    for (int64_t i = 0; i < count; i++)
        plain += value_of(&source, type, i) * value_of(&source, type, i);
    if (fabs(total - plain) > 1e-12 * plain)
        fail("%s: wb_sum_of_squares of %lld elements is %.17g, not %.17g", s->name, (long long)count, total, plain);
    buffer_free(&source);
    buffer_free(&result);
    buffer_free(&expected);
}

/* Each of the 65,536 patterns of a 16-bit type, widened and narrowed, is itself; a NaN is a quiet one. */
static void widen_and_narrow(subject *s, int type)
{
    const int64_t count = 65536;
    const unsigned infinity = type == WB_FLOAT16 ? 0x7c00 : 0x7f80;
    buffer source = buffer_make((size_t)count * 2, 0), back = buffer_make((size_t)count * 2, 0);
    buffer wide = buffer_make((size_t)count * 4, 0);
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = (uint16_t)i;
        memcpy(source.start + 2 * i, &bits, 2);
    }
    wb_accumulate(s->pool, address_of(&wide), address_of(&source), type, count, 1);
    wb_narrow(s->pool, address_of(&back), type, address_of(&wide), count);
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, back.start + 2 * i, 2);
        int was_nan = (i & 0x7fff) > infinity, is_nan = (bits & 0x7fffu) > infinity;
        if (was_nan ? !is_nan : bits != i)
            fail("%s: %04x of type %d came back as %04x", s->name, (unsigned)i, type, bits);
    }
    s->compared += count;
    buffer_free(&source);
    buffer_free(&back);
    buffer_free(&wide);
}

static void all_calls(subject *s, int64_t count)
{
    for (int type = WB_FLOAT32; type <= WB_FLOAT16; type++) {
        accumulate(s, type, 0, count);
        accumulate(s, type, 1, count);
        sum(s, type, count);
        if (type != WB_FLOAT32)
            narrow(s, type, count);
    }
    split_and_join(s, count);
    copy(s, count);
}

int64_t check_conversions(const options *chosen)
{
    int64_t compared = 0;
    for (int set = 0; set < INSTRUCTION_SETS; set++) {
        if (!chosen->use_set[set])
            continue;
        subject s = {pool_of(1, WB_SCALAR), pool_of(3, set), set_names[set], 0};
        /* Vectors have at most 64 elements: beyond a few of them, lengths may be sampled. */
        for (int64_t count = 0; count <= TAIL_LENGTHS; count += count < 320 ? 1 : chosen->stride)
            all_calls(&s, count);
        all_calls(&s, LARGE);
        widen_and_narrow(&s, WB_BFLOAT16);
        widen_and_narrow(&s, WB_FLOAT16);
        compared += s.compared;
        wb_pool_free(s.scalar);
        wb_pool_free(s.pool);
    }
    return compared;
}
