/* See data.h. */
#include "data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const set_names[INSTRUCTION_SETS] = {"scalar", "avx2", "avx512", "neon"};

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("FAILED: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

wb_pool *pool_of(int threads, int instruction_set)
{
    wb_pool *pool = wb_pool_create(threads, instruction_set);
    if (!pool)
        fail("no pool of %d threads for %s", threads, set_names[instruction_set]);
    return pool;
}

uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}

uint64_t seeded(uint64_t number)
{
    uint64_t state = (number + 1) * 0x9E3779B97F4A7C15u | 1;
    next_random(&state);
    return state;
}

float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float next_float(uint64_t *state, int octaves)
{
    uint64_t random = next_random(state);
    float magnitude = 0.5f + (float)(random >> 40 & 0x7fffff) * 0x1p-24f;
    magnitude = ldexpf(magnitude, -(int)(random % (unsigned)octaves));
    return random >> 63 ? -magnitude : magnitude;
}

uint16_t next_float16(uint64_t *state)
{
    uint16_t bits = (uint16_t)(next_random(state) >> 48);
    return (bits & 0x7c00) == 0x7c00 ? bits & 0xbfff : bits;
}

buffer buffer_make(size_t bytes, size_t shift)
{
    buffer b = {malloc(bytes + shift), NULL, bytes};
    if (!b.block)
        fail("no memory for %zu bytes", bytes + shift);
    b.start = (char *)b.block + shift;
    return b;
}

void buffer_free(buffer *b)
{
    free(b->block);
    *b = (buffer){NULL, NULL, 0};
}

void buffer_fill(buffer *b, uint64_t seed)
{
    uint64_t state = seeded(seed);
    for (size_t at = 0; at < b->bytes; at += sizeof state) {
        uint64_t random = next_random(&state);
        size_t left = b->bytes - at;
        memcpy(b->start + at, &random, left < sizeof random ? left : sizeof random);
    }
}

int64_t buffer_difference(const buffer *a, const buffer *b)
{
    if (a->bytes == 0 || memcmp(a->start, b->start, a->bytes) == 0)
        return -1;
    int64_t at = 0;
    while (a->start[at] == b->start[at])
        at++;
    return at;
}

uintptr_t address_of(const buffer *b)
{
    return (uintptr_t)b->start;
}

size_t width_of(int type)
{
    return type == WB_FLOAT32 ? 4 : 2;
}
