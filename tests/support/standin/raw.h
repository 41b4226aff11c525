/* System calls that touch no thread-local storage: usable while FS is the guest's. */
#pragma once

#include <stdint.h>
#include <sys/syscall.h>

static inline long raw_syscall(long number, uint64_t a, uint64_t b, uint64_t c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}
