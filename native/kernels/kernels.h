/* What an instruction set has to offer: one table of functions for each, chosen once in dispatch.c.
 *
 * Invariant: every table gives the same bits. A kernel works on one thread, on any count, with the natural
 * alignment of its elements.
 */
#ifndef WORKBENCH_KERNELS_H
#define WORKBENCH_KERNELS_H

#include "../native.h"

/* -DWB_BUILD_X86=0 and -DWB_BUILD_NEON=0 build what any other processor gets. */
#ifndef WB_BUILD_X86
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define WB_BUILD_X86 1
#else
#define WB_BUILD_X86 0
#endif
#endif
#ifndef WB_BUILD_NEON
#if defined(__AARCH64EL__) && defined(__ARM_NEON)
#define WB_BUILD_NEON 1
#else
#define WB_BUILD_NEON 0
#endif
#endif

#if WB_BUILD_X86
#define WB_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define WB_AVX512_SETS "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
/* clang does not know the preference for a width, and would drop the whole attribute. */
#ifdef __clang__
#define WB_TARGET_AVX512 __attribute__((target(WB_AVX512_SETS)))
#else
#define WB_TARGET_AVX512 __attribute__((target(WB_AVX512_SETS ",prefer-vector-width=512")))
#endif
#endif

/* How far ahead of its reads a loop asks for each array, in bytes. The processor's own prefetching stops at the end of
 * a page and begins again behind it; asking across that end brings a tenth. */
#define WB_PREFETCH_BYTES 2048

/* Elements that share a scale in the compact format. */
#define WB_BLOCK 256
/* From one element's random word to the next's. Odd, and near 2^32 times the golden ratio's fraction: its multiples are
 * evenly spread. */
#define WB_RANDOM_STRIDE 0x9E3779B1u
#define WB_MOMENT_BYTES(format) ((format) == WB_EXACT ? 4 : (format) == WB_HALF ? 2 : 1)

/* What undoes an update that was made ahead of its verdict, of consecutive elements of a piece. Of those, the first
 * `done` were updated. `old`: the state of those whose residues do not fit; `residues`: of all, in the shape below that
 * their state format has. Residues of a parameter, and of exact moments, are what the inverse formula misses, in units
 * of the last place. */
typedef struct {
    uint32_t done, escapes, unused[2];
    struct { uint32_t element, exp_avg, exp_avg_sq, master; } old[WB_ESCAPES];
    uint8_t residues[];
} wb_record;

typedef struct {
    uint32_t words[WB_RECORD_ELEMENTS]; /* 16 bits of exp_avg, 8 of exp_avg_sq, 8 of the parameter */
} wb_exact_residues;

typedef struct {
    uint16_t moments[WB_RECORD_ELEMENTS]; /* 12 bits of exp_avg, 4 of exp_avg_sq */
    uint8_t parameter[WB_RECORD_ELEMENTS];
} wb_half_residues;

typedef struct {
    int8_t exp_avg[WB_RECORD_ELEMENTS]; /* the old codes and scales */
    uint8_t exp_avg_sq[WB_RECORD_ELEMENTS], parameter[WB_RECORD_ELEMENTS];
    float exp_avg_scale[WB_RECORD_ELEMENTS / WB_BLOCK], exp_avg_sq_scale[WB_RECORD_ELEMENTS / WB_BLOCK];
} wb_compact_residues;
_Static_assert(sizeof(wb_record) % 64 == 0 && sizeof(wb_exact_residues) % 64 == 0 &&
                   sizeof(wb_half_residues) % 64 == 0 && sizeof(wb_compact_residues) % 64 == 0,
               "residues are streamed in whole rows");

/* Consecutive elements to be updated: a part of a piece, its pointers at the part's first element. */
typedef struct {
    int64_t count;
    const void *gradient; /* float32, or bfloat16 with a split master */
    int gradient_type;
    int state_format;
    float *master; /* or NULL and: */
    uint16_t *high;
    int16_t *low;
    void *exp_avg;
    void *exp_avg_sq;
    float *exp_avg_scale; /* compact: one a block, the range begins with a block */
    float *exp_avg_sq_scale;
    uint32_t random_key; /* the first element's random word */
    wb_record *record; /* of an update that may be undone; the range begins with it */
} wb_range;

/* The factors of one piece's update, each folded in double and rounded once. Where two meanings are given, the second
 * is that of every format but exact, which has less to multiply. */
typedef struct {
    float gradient_scale;        /* exact only */
    float beta1;                 /* all but exact */
    float exp_avg_weight;        /* 1 - beta1; or (1 - beta1) * gradient_scale */
    float beta2;
    float exp_avg_sq_weight;     /* 1 - beta2; or sqrt(1 - beta2) * gradient_scale */
    float decay_factor;          /* 1 - learning_rate * weight_decay */
    float bias_correction2_sqrt; /* sqrt(1 - beta2^step); exact only */
    float eps;                   /* or eps * sqrt(1 - beta2^step) */
    float step_size;             /* -learning_rate / (1 - beta1^step); or that * sqrt(1 - beta2^step) */
} wb_adamw_factors;

typedef struct {
    void (*adamw)(const wb_range *range, const wb_adamw_factors *factors);
    /* `adamw` with beta1 above 0.5, on at most WB_RECORD_ELEMENTS elements, that writes the record: as far as there is
     * room in it. */
    void (*speculate)(const wb_range *range, const wb_adamw_factors *factors);
    /* Gives the first `done` of these elements the bits that they had, by the same gradient and factors. */
    void (*undo)(const wb_range *range, const wb_adamw_factors *factors);
    /* gradient * scale + decay * parameter in float32: what an update starts from where the kernels above do not read
     * the gradient as it is. The parameter is `master`, or where that is NULL, `high` and `low`. */
    void (*prepare)(float *destination, const void *gradient, int type, float scale, float decay,
                    const float *master, const uint16_t *high, const int16_t *low, int64_t count);
    /* The partial of at most WB_PARTIAL_ELEMENTS elements. */
    double (*sum_of_squares)(const void *values, int type, int64_t count);
    void (*accumulate)(float *destination, const void *source, int type, int64_t count, int overwrite);
    void (*narrow)(uint16_t *destination, int type, const float *source, int64_t count);
    /* As split does, the upper half alone. */
    void (*upper_half)(uint16_t *high, const float *source, int64_t count);
    void (*split)(const float *source, uint16_t *high, int16_t *low, int64_t count);
    void (*join)(const uint16_t *high, const int16_t *low, float *destination, int64_t count);
} wb_kernels;

/* NULL where the CPU or the build lacks the instruction set. */
const wb_kernels *wb_kernels_for(int instruction_set);

#define WB_DECLARE_UPDATES(suffix)                                                                                     \
    void wb_adamw_##suffix(const wb_range *range, const wb_adamw_factors *factors);                                    \
    void wb_speculate_##suffix(const wb_range *range, const wb_adamw_factors *factors);                                \
    void wb_undo_##suffix(const wb_range *range, const wb_adamw_factors *factors);

#define WB_DECLARE(suffix)                                                                                             \
    WB_DECLARE_UPDATES(suffix)                                                                                         \
    void wb_prepare_##suffix(float *destination, const void *gradient, int type, float scale, float decay,             \
                             const float *master, const uint16_t *high, const int16_t *low, int64_t count);            \
    double wb_sum_of_squares_##suffix(const void *values, int type, int64_t count);                                    \
    void wb_accumulate_##suffix(float *destination, const void *source, int type, int64_t count, int overwrite);       \
    void wb_narrow_##suffix(uint16_t *destination, int type, const float *source, int64_t count);                      \
    void wb_upper_half_##suffix(uint16_t *high, const float *source, int64_t count);                                   \
    void wb_split_##suffix(const float *source, uint16_t *high, int16_t *low, int64_t count);                          \
    void wb_join_##suffix(const uint16_t *high, const int16_t *low, float *destination, int64_t count);

WB_DECLARE(scalar)
#if WB_BUILD_X86
WB_DECLARE(avx2)
WB_DECLARE(avx512)
#endif
#if WB_BUILD_NEON
WB_DECLARE_UPDATES(neon)
#endif

#endif
