/* The memory's limit for one optimizer step: the reads and the writes of a format, element for element, and no
 * arithmetic. Every value read is written back unchanged, 16 elements of each array at a time, as the kernels do.
 *
 * The empty asm statements keep the compiler from seeing that a store changes nothing.
 */
#include <immintrin.h>
#include <stdint.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

/* Reads 16 elements of `width` bytes; writes them back where `write` is set. */
AVX2 INLINE void touch(char *array, int64_t i, int width, int write)
{
    char *at = array + i * width;
    for (int offset = 0; offset < 16 * width; offset += 32) {
        if (16 * width < 32) {
            __m128i value = _mm_loadu_si128((const __m128i *)(at + offset));
            __asm__ __volatile__("" : "+x"(value));
            if (write)
                _mm_storeu_si128((__m128i *)(at + offset), value);
        } else {
            __m256i value = _mm256_loadu_si256((const __m256i *)(at + offset));
            __asm__ __volatile__("" : "+x"(value));
            if (write)
                _mm256_storeu_si256((__m256i *)(at + offset), value);
        }
    }
}

/* gradient bf16; high, low 16 bits; both moments `width` bytes each. `count` is cut down to a multiple of 16. */
AVX2 INLINE void split_limit(char *gradient, char *high, char *low, char *exp_avg, char *exp_avg_sq, int64_t count,
                             int width)
{
    for (int64_t i = 0; i + 16 <= count; i += 16) {
        touch(gradient, i, 2, 0);
        touch(high, i, 2, 1);
        touch(low, i, 2, 1);
        touch(exp_avg, i, width, 1);
        touch(exp_avg_sq, i, width, 1);
    }
}

AVX2 void limit(uintptr_t gradient, uintptr_t high, uintptr_t low, uintptr_t exp_avg, uintptr_t exp_avg_sq,
                int64_t count, int width)
{
    char *g = (char *)gradient, *h = (char *)high, *l = (char *)low, *m = (char *)exp_avg, *v = (char *)exp_avg_sq;
    if (width == 4)
        split_limit(g, h, l, m, v, count, 4);
    else if (width == 2)
        split_limit(g, h, l, m, v, count, 2);
    else
        split_limit(g, h, l, m, v, count, 1);
}
