/* The system call filter a tender puts on itself before the guest runs: whatever no rule allows
 * kills the thread that tries it. */
#pragma once

#include <stdint.h>

enum comparison { EQUAL, AT_MOST };
struct condition {
    unsigned argument;
    enum comparison comparison;
    uint64_t value;
};

void sandbox_allow(int call);
void sandbox_allow_if(int call, unsigned count, const struct condition *condition);
#define SANDBOX_ALLOW_IF(CALL, ...)                                                               \
    sandbox_allow_if(CALL, sizeof((struct condition[]) { __VA_ARGS__ }) / sizeof(struct condition), \
        (struct condition[]) { __VA_ARGS__ })

/* Exits with 1 if it cannot. On all threads. */
void sandbox_close(void);
