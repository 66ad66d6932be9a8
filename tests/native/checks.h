/* The checks that driver.c runs by name. Each returns how many results it compared, or ends the process. */
#ifndef WORKBENCH_TESTS_CHECKS_H
#define WORKBENCH_TESTS_CHECKS_H

#include "data.h"

/* Every length from 0 to this: whole rows and blocks of every instruction set, with every tail. */
#define TAIL_LENGTHS 1025

int64_t check_tails(const options *chosen);
int64_t check_not_finite(const options *chosen);
int64_t check_conversions(const options *chosen);
int64_t check_large(const options *chosen);
int64_t check_threads(const options *chosen);
int64_t check_forks(const options *chosen);
int64_t check_leaks(const options *chosen);
int64_t check_speculation(const options *chosen);

/* Does on purpose what a sanitizer is there to report: "overrun", "leak", "race", "undefined" or "uninitialized". */
int commit_fault(const char *name);

#endif
