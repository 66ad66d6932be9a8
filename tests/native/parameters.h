/* A parameter with all that an update reads and writes, in every combination of formats.
 *
 * Invariant: parameters of the same combination, size and seed are equal, so that updates of them can be compared.
 */
#ifndef WORKBENCH_TESTS_PARAMETERS_H
#define WORKBENCH_TESTS_PARAMETERS_H

#include "data.h"

enum master_kind { SPLIT_MASTER, FLOAT32_MASTER, MASTER_AND_BFLOAT16, MASTER_AND_FLOAT16, MASTER_KINDS };

#define COMBINATIONS (3 * MASTER_KINDS * 3 * 2)

typedef struct {
    int state_format;  /* enum wb_state_format */
    int master_kind;   /* enum master_kind */
    int gradient_type; /* enum wb_type */
    int decay;
} combination;

enum field { GRADIENT, MASTER, HIGH, LOW, EMIT, EXP_AVG, EXP_AVG_SQ, EXP_AVG_SCALE, EXP_AVG_SQ_SCALE, FIELDS };

typedef struct {
    combination combination;
    wb_piece piece;
    buffer fields[FIELDS];
} parameter;

/* Counted from 0 to COMBINATIONS - 1, and on from the beginning. */
combination combination_at(int64_t index);

/* `shift`: by how many elements each field lies beside malloc's alignment. */
parameter parameter_make(combination of, int64_t count, int shift);
void parameter_free(parameter *p);
/* Gradients with zeros, denormals and huge values; moments that such gradients could have left. */
void parameter_fill(parameter *p, uint64_t seed);
void parameter_copy(parameter *to, const parameter *from);
/* Gradients and moments that go together as in a training, and now and then a gradient that does not. */
void parameter_settle(parameter *p, uint64_t seed);
/* Infinities and NaNs among the gradients. */
void parameter_spoil_gradient(parameter *p);

/* Settings that go with a seed's parameters: eps is 0 only where no element's exp_avg_sq is. */
wb_adamw settings_of(uint64_t seed, int coupled_decay);

/* Fails where the two are not the same bits; `who` names what differs, `p` being its result. */
void expect_equal(const parameter *p, const parameter *expected, int coupled_decay, const char *who);

#endif
