/* Rounding to nearest with denormals kept, for the length of a piece of work, whatever the thread had set before
 * (torch.set_flush_denormal sets it for the thread that calls it, and a new thread inherits it). */
#ifndef WORKBENCH_FLOAT_ENVIRONMENT_H
#define WORKBENCH_FLOAT_ENVIRONMENT_H

#include <stdint.h>

#if defined(__SSE__)
#include <xmmintrin.h>

static inline uint64_t float_environment_begin(void)
{
    uint64_t before = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return before;
}

static inline void float_environment_end(uint64_t before)
{
    _mm_setcsr((unsigned)before);
}
#elif defined(__aarch64__)
static inline uint64_t float_environment_begin(void)
{
    uint64_t before;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
}

static inline void float_environment_end(uint64_t before)
{
    __asm__ __volatile__("msr fpcr, %0" : : "r"(before));
}
#else
static inline uint64_t float_environment_begin(void)
{
    return 0;
}

static inline void float_environment_end(uint64_t before)
{
    (void)before;
}
#endif

#endif
