/* See parameters.h. */
#include "kernels/kernels.h"
#include "parameters.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const format_names[] = {"exact", "half", "compact"};
static const char *const kind_names[] = {"split", "float32", "float32 with bfloat16", "float32 with float16"};
static const char *const type_names[] = {"float32", "bfloat16", "float16"};
static const char *const field_names[] = {"gradient", "master",        "high",
                                          "low",      "emit",          "exp_avg",
                                          "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"};

combination combination_at(int64_t index)
{
    int i = (int)(index % COMBINATIONS);
    return (combination){
        .state_format = i % 3,
        .gradient_type = i / 3 % 3,
        .master_kind = i / 9 % MASTER_KINDS,
        .decay = i / (9 * MASTER_KINDS) % 2,
    };
}

/* Bytes of an element of a field, or 0 where the combination has no such field. */
static size_t element_bytes(combination of, enum field field)
{
    int split = of.master_kind == SPLIT_MASTER;
    switch (field) {
    case GRADIENT:
        return width_of(of.gradient_type);
    case MASTER:
        return split ? 0 : 4;
    case HIGH:
    case LOW:
        return split ? 2 : 0;
    case EMIT:
        return of.master_kind == MASTER_AND_BFLOAT16 || of.master_kind == MASTER_AND_FLOAT16 ? 2 : 0;
    case EXP_AVG:
    case EXP_AVG_SQ:
        return of.state_format == WB_EXACT ? 4 : of.state_format == WB_HALF ? 2 : 1;
    default:
        return of.state_format == WB_COMPACT ? 4 : 0;
    }
}

parameter parameter_make(combination of, int64_t count, int shift)
{
    parameter p = {.combination = of};
    for (int field = 0; field < FIELDS; field++) {
        size_t bytes = element_bytes(of, field);
        int64_t elements = field >= EXP_AVG_SCALE ? (count + 255) / 256 : count;
        if (bytes)
            p.fields[field] = buffer_make((size_t)elements * bytes, (size_t)shift * bytes);
    }
    p.piece = (wb_piece){
        .count = count,
        .step = 1,
        .gradient = address_of(&p.fields[GRADIENT]),
        .master = address_of(&p.fields[MASTER]),
        .high = address_of(&p.fields[HIGH]),
        .low = address_of(&p.fields[LOW]),
        .emit = address_of(&p.fields[EMIT]),
        .exp_avg = address_of(&p.fields[EXP_AVG]),
        .exp_avg_sq = address_of(&p.fields[EXP_AVG_SQ]),
        .exp_avg_scale = address_of(&p.fields[EXP_AVG_SCALE]),
        .exp_avg_sq_scale = address_of(&p.fields[EXP_AVG_SQ_SCALE]),
        .gradient_type = of.gradient_type,
        .emit_type = of.master_kind == MASTER_AND_FLOAT16 ? WB_FLOAT16 : WB_BFLOAT16,
        .state_format = of.state_format,
        .decay = of.decay,
    };
    return p;
}

void parameter_free(parameter *p)
{
    for (int field = 0; field < FIELDS; field++)
        buffer_free(&p->fields[field]);
}

void parameter_copy(parameter *to, const parameter *from)
{
    for (int field = 0; field < FIELDS; field++)
        if (from->fields[field].bytes)
            memcpy(to->fields[field].start, from->fields[field].start, from->fields[field].bytes);
}

/* Element `i` of a float32 array, or of a bfloat16 one, which keeps the upper half. */
static void put(buffer *b, int64_t i, size_t bytes, float value)
{
    uint32_t bits = bits_of_float(value);
    uint16_t upper = (uint16_t)(bits >> 16);
    if (bytes == 4)
        memcpy(b->start + 4 * i, &bits, 4);
    else
        memcpy(b->start + 2 * i, &upper, 2);
}

static void fill_gradient(parameter *p, uint64_t seed, uint64_t *state)
{
    for (int64_t i = 0; i < p->piece.count; i++) {
        unsigned kind = (unsigned)(next_random(state) >> 32) % 97;
        float value = next_float(state, 24);
        if (kind < 6)
            value = 0;
        else if (kind < 12)
            value *= 0x1p-127f;
        else if (kind == 12 && seed % 4 == 0)
            value = value < 0 ? -1e30f : 1e30f;
        uint16_t half = next_float16(state);
        if (p->combination.gradient_type == WB_FLOAT16)
            memcpy(p->fields[GRADIENT].start + 2 * i, &half, 2);
        else
            put(&p->fields[GRADIENT], i, width_of(p->combination.gradient_type), value);
    }
}

static void fill_master(parameter *p, uint64_t *state)
{
    for (int64_t i = 0; i < p->piece.count; i++) {
        float value = next_float(state, 8);
        uint32_t bits = bits_of_float(value);
        uint16_t high = (uint16_t)((bits + 0x8000u) >> 16), low = (uint16_t)bits;
        if (p->combination.master_kind != SPLIT_MASTER) {
            put(&p->fields[MASTER], i, 4, value);
            continue;
        }
        memcpy(p->fields[HIGH].start + 2 * i, &high, 2);
        memcpy(p->fields[LOW].start + 2 * i, &low, 2);
    }
}

static int new_moments(uint64_t seed)
{
    return seed % 3 == 0;
}

static void fill_compact_moments(parameter *p, uint64_t *state)
{
    for (int64_t i = 0; i < p->piece.count; i++) {
        uint64_t random = next_random(state) >> 32;
        p->fields[EXP_AVG].start[i] = (char)((int)(random % 255) - 127);
        p->fields[EXP_AVG_SQ].start[i] = (char)(uint8_t)(random / 255 % 255 + 1);
    }
    for (int64_t block = 0; block < (p->piece.count + 255) / 256; block++) {
        put(&p->fields[EXP_AVG_SCALE], block, 4, fabsf(next_float(state, 12)) * 1e-6f);
        put(&p->fields[EXP_AVG_SQ_SCALE], block, 4, fabsf(next_float(state, 12)) * 1e-8f);
    }
}

static void fill_moments(parameter *p, uint64_t *state)
{
    size_t bytes = element_bytes(p->combination, EXP_AVG);
    for (int64_t i = 0; i < p->piece.count; i++) {
        put(&p->fields[EXP_AVG], i, bytes, next_float(state, 16) * 0.1f);
        put(&p->fields[EXP_AVG_SQ], i, bytes, fabsf(next_float(state, 24)) * 0.1f);
    }
}

void parameter_fill(parameter *p, uint64_t seed)
{
    uint64_t state = seeded(seed);
    fill_gradient(p, seed, &state);
    fill_master(p, &state);
    if (p->fields[EMIT].bytes)
        memset(p->fields[EMIT].start, 0, p->fields[EMIT].bytes);
    if (new_moments(seed)) {
        for (int field = EXP_AVG; field < FIELDS; field++)
            if (p->fields[field].bytes)
                memset(p->fields[field].start, 0, p->fields[field].bytes);
    } else if (p->combination.state_format == WB_COMPACT) {
        fill_compact_moments(p, &state);
    } else {
        fill_moments(p, &state);
    }
    p->piece.step = new_moments(seed) ? 1 : 1 + (int64_t)(seed % 1000);
    p->piece.random_stream = (int64_t)(seed * 7);
}

void parameter_settle(parameter *p, uint64_t seed)
{
    uint64_t state = seeded(~seed);
    for (int64_t i = 0; i < p->piece.count; i++) {
        float spike = next_random(&state) >> 32 & 511 ? 1 : 0x1p30f;
        uint16_t half = (uint16_t)(next_float16(&state) % 0x2000 + 0x1400); /* from 2^-10 to 2^-2 */
        if (p->combination.gradient_type == WB_FLOAT16)
            memcpy(p->fields[GRADIENT].start + 2 * i, &half, 2);
        else
            put(&p->fields[GRADIENT], i, width_of(p->combination.gradient_type), next_float(&state, 6) * spike);
        const int width = WB_MOMENT_BYTES(p->combination.state_format);
        if (width == 1) /* codes, which go with any gradient */
            continue;
        put(&p->fields[EXP_AVG], i, width, next_float(&state, 6));
        put(&p->fields[EXP_AVG_SQ], i, width, fabsf(next_float(&state, 6)));
    }
}

void parameter_spoil_gradient(parameter *p)
{
    static const float values[] = {INFINITY, -INFINITY, NAN, 3e38f};
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e01, 0x7bff};
    for (int64_t i = 0; i < p->piece.count; i += 5) {
        if (p->combination.gradient_type == WB_FLOAT16)
            memcpy(p->fields[GRADIENT].start + 2 * i, &halves[i % 4], 2);
        else
            put(&p->fields[GRADIENT], i, width_of(p->combination.gradient_type), values[i % 4]);
    }
}

wb_adamw settings_of(uint64_t seed, int coupled_decay)
{
    return (wb_adamw){
        .learning_rate = 1e-3,
        .beta1 = seed % 7 == 0 ? 0.4 : 0.9,
        .beta2 = 0.999,
        .eps = seed % 5 == 0 && !new_moments(seed) ? 0 : 1e-8,
        .weight_decay = 0.1,
        .gradient_scale = seed % 2 ? 1.0f : 0.37f,
        .coupled_decay = coupled_decay,
    };
}

void expect_equal(const parameter *p, const parameter *expected, int coupled_decay, const char *who)
{
    combination of = p->combination;
    for (int field = 0; field < FIELDS; field++) {
        int64_t at = buffer_difference(&p->fields[field], &expected->fields[field]);
        if (at >= 0)
            fail("%s: %s differs at byte %" PRId64 " (state %s, master %s, gradient %s, decay %d, coupled %d, "
                 "%" PRId64 " elements)",
                 who, field_names[field], at, format_names[of.state_format], kind_names[of.master_kind],
                 type_names[of.gradient_type], of.decay, coupled_decay, p->piece.count);
    }
}
