/* What the checks are made of: numbers from fixed seeds, buffers, and the way a check fails.
 *
 * Invariant: a buffer ends where its last element does, so that a sanitizer sees the first byte beyond it that is read
 * or written; and the same seed gives the same contents.
 */
#ifndef WORKBENCH_TESTS_DATA_H
#define WORKBENCH_TESTS_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "native.h"

#define INSTRUCTION_SETS 4

/* What the command line chose. */
typedef struct {
    int use_set[INSTRUCTION_SETS]; /* by enum wb_instruction_set; scalar, which all are compared with, is always used */
    int stride;                    /* of the combinations, each length is checked with every `stride`-th */
    int repeats;               /* of what threads do at the same time */
    int fork;
    int64_t updates; /* of the check that memory does not grow */
} options;

extern const char *const set_names[INSTRUCTION_SETS];

/* Prints why and ends the process. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A pool, or the end of the process. */
wb_pool *pool_of(int threads, int instruction_set);

/* xorshift64* (Vigna, An experimental exploration of Marsaglia's xorshift generators, scrambled, 2016). */
uint64_t next_random(uint64_t *state);
/* A state of the generator, which must not be 0, for any number. */
uint64_t seeded(uint64_t number);

float float_of_bits(uint32_t bits);
uint32_t bits_of_float(float value);
/* Of either sign, spread over `octaves` below 1. */
float next_float(uint64_t *state, int octaves);
/* Any float16 but infinities and NaNs. */
uint16_t next_float16(uint64_t *state);

typedef struct {
    void *block;
    char *start;
    size_t bytes;
} buffer;

/* Begins `shift` bytes into its block, to be aligned to no more than that. */
buffer buffer_make(size_t bytes, size_t shift);
void buffer_free(buffer *b);
void buffer_fill(buffer *b, uint64_t seed);
/* The first byte in which two buffers of one size differ, or -1. */
int64_t buffer_difference(const buffer *a, const buffer *b);
uintptr_t address_of(const buffer *b);

/* Bytes of an element of an enum wb_type. */
size_t width_of(int type);

#endif
