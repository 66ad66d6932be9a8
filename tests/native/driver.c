/* Exercises every call of native/interface.h without Python, so that sanitizers and valgrind see nothing else.
 *
 *     driver tails|notfinite|conversions|large|threads|forks|leaks|speculation|all ... [--sets scalar,avx2] [--stride 7]
 *            [--repeats 6] [--updates 1000000] [--no-fork]
 *     driver sets          the instruction sets of this processor and build
 *     driver fault NAME    a fault on purpose
 *
 * It prints one line and exits with 0, or says what failed and exits with another code.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checks.h"

/* A check that hangs is ended by SIGALRM. */
#define LIMIT_S 1800

static const struct {
    const char *name;
    int64_t (*check)(const options *chosen);
} checks[] = {
    {"tails", check_tails}, {"notfinite", check_not_finite}, {"conversions", check_conversions},
    {"large", check_large}, {"threads", check_threads},      {"forks", check_forks},
    {"leaks", check_leaks}, {"speculation", check_speculation},
};

#define CHECKS ((int)(sizeof checks / sizeof *checks))

static int print_sets(void)
{
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        if (wb_has_instruction_set(set))
            printf("%s\n", set_names[set]);
    return 0;
}

static void choose_sets(options *chosen, const char *names)
{
    for (int set = 0; set < INSTRUCTION_SETS; set++)
        chosen->use_set[set] = set == WB_SCALAR;
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, ",");
        int found = -1;
        for (int set = 0; set < INSTRUCTION_SETS; set++)
            if (strlen(set_names[set]) == length && strncmp(name, set_names[set], length) == 0)
                found = set;
        if (found < 0)
            fail("there is no instruction set %s", name);
        chosen->use_set[found] = wb_has_instruction_set(found);
        name += length + (name[length] == ',');
    }
}

/* Fills `wanted` by the names of checks; an option takes its value from the next word. */
static void read_words(int count, char **words, options *chosen, int *wanted)
{
    for (int i = 0; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : "";
        int named = strcmp(words[i], "all") == 0;
        if (strcmp(words[i], "--no-fork") == 0) {
            chosen->fork = 0;
        } else if (strcmp(words[i], "--sets") == 0) {
            choose_sets(chosen, value);
            i++;
        } else if (strcmp(words[i], "--stride") == 0) {
            chosen->stride = atoi(value) > 0 ? atoi(value) : 1;
            i++;
        } else if (strcmp(words[i], "--repeats") == 0) {
            chosen->repeats = atoi(value);
            i++;
        } else if (strcmp(words[i], "--updates") == 0) {
            chosen->updates = atoll(value);
            i++;
        } else {
            int known = named;
            for (int check = 0; check < CHECKS; check++)
                if (named || strcmp(words[i], checks[check].name) == 0)
                    known = wanted[check] = 1;
            if (!known)
                fail("there is no check %s", words[i]);
        }
    }
}

int main(int count, char **words)
{
    alarm(LIMIT_S);
    if (count == 2 && strcmp(words[1], "sets") == 0)
        return print_sets();
    if (count == 3 && strcmp(words[1], "fault") == 0)
        return commit_fault(words[2]);
    options chosen = {.stride = 7, .repeats = 6, .fork = 1, .updates = 1000000};
    int wanted[CHECKS] = {0};
    choose_sets(&chosen, "scalar,avx2,avx512,neon");
    read_words(count - 1, words + 1, &chosen, wanted);
    int any = 0;
    for (int check = 0; check < CHECKS; check++)
        if (wanted[check]) {
            long long compared = (long long)checks[check].check(&chosen);
            printf("%s%s %lld", any++ ? ", " : "passed: ", checks[check].name, compared);
            fflush(stdout);
        }
    if (!any)
        fail("name a check: tails, notfinite, conversions, large, threads, forks, leaks, speculation, all");
    putchar('\n');
    return 0;
}
