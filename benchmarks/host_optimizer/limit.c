/* The memory's limit for one optimizer step: the reads and the writes of a format, element for element, and no
 * arithmetic. Every value that is read is written back unchanged, but the gradient's, which is only read.
 *
 * Threads share a cursor and take a block of elements at a time, as the optimizer does, so that a thread that
 * is held up does not hold up the others. Passes follow each other without a wait between them: what it costs to
 * bring threads together is the optimizer's to pay, not the limit's.
 *
 * The empty asm statements keep the compiler from seeing that a store changes nothing.
 */
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2")))
#define VECTOR_BYTES 32
#define KEEP(value) __asm__ __volatile__("" : "+x"(value))
#elif defined(__aarch64__)
#define TARGET
#define VECTOR_BYTES 16
#define KEEP(value) __asm__ __volatile__("" : "+w"(value))
#endif

enum { STEP = 64, SCALED = 256, BLOCK = 65536 }; /* elements */

/* The processor's own prefetching stops at the end of each page. Asking ahead carries the reads over it, which is worth
 * 3 to 5 %; a limit without it would be one that the optimizer can beat. */
enum { LINE_BYTES = 64, AHEAD_BYTES = 1024 };

enum format { EXACT, HALF, COMPACT, FP32 };

/* Addresses. `high` is the whole master in FP32, where `low` is unused; the scales belong to COMPACT. */
typedef struct {
    uintptr_t gradient, high, low, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale;
    int64_t count;  /* elements; those beyond a multiple of 256 are left out */
    int64_t format; /* enum format */
    int64_t passes;
    int64_t cursor; /* blocks taken, over all passes: 0 at first */
} limit_work;

typedef int64_t vector __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));

/* Reads STEP elements of `width` bytes from element `i` on, and writes them back where `write` is set. */
TARGET INLINE void touch(uintptr_t array, int64_t i, int width, int write)
{
    char *at = (char *)array + i * width;
    for (int offset = 0; offset < STEP * width; offset += LINE_BYTES)
        __builtin_prefetch(at + offset + AHEAD_BYTES, write);
    for (int offset = 0; offset < STEP * width; offset += VECTOR_BYTES) {
        vector value = *(const vector *)(at + offset);
        KEEP(value);
        if (write)
            *(vector *)(at + offset) = value;
    }
}

TARGET INLINE void touch_scale(uintptr_t array, int64_t index)
{
    volatile float *at = (volatile float *)array + index;
    *at = *at;
}

TARGET INLINE void pass(const limit_work *work, int64_t first, int64_t end, int gradient_width, int high_width,
                        int low_width, int moment_width, int scales)
{
    for (int64_t block = first; block < end; block += SCALED) {
        for (int64_t i = block; i < block + SCALED; i += STEP) {
            touch(work->gradient, i, gradient_width, 0);
            touch(work->high, i, high_width, 1);
            touch(work->low, i, low_width, 1);
            touch(work->exp_avg, i, moment_width, 1);
            touch(work->exp_avg_sq, i, moment_width, 1);
        }
        if (scales) {
            touch_scale(work->exp_avg_scale, block / SCALED);
            touch_scale(work->exp_avg_sq_scale, block / SCALED);
        }
    }
}

/* One thread's share of the work. All threads of one call are given the same `work`. */
TARGET void limit_share(limit_work *work)
{
    int64_t count = work->count / SCALED * SCALED;
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
    for (;;) {
        int64_t taken = __atomic_fetch_add(&work->cursor, 1, __ATOMIC_RELAXED);
        if (taken >= blocks * work->passes)
            return;
        int64_t first = taken % blocks * BLOCK;
        int64_t end = first + BLOCK < count ? first + BLOCK : count;
        if (work->format == EXACT)
            pass(work, first, end, 2, 2, 2, 4, 0);
        else if (work->format == HALF)
            pass(work, first, end, 2, 2, 2, 2, 0);
        else if (work->format == COMPACT)
            pass(work, first, end, 2, 2, 2, 1, 1);
        else
            pass(work, first, end, 4, 4, 0, 4, 0);
    }
}
