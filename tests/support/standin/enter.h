#pragma once

#include <stdint.h>

/* Jumps into the guest as the C call entry(boot_info) that never returns, on a stack of its own. */
static inline _Noreturn void enter_guest(uint64_t entry, uint64_t stack, uint64_t boot_info)
{
    __asm__ volatile("mov %1, %%rsp; xor %%ebp, %%ebp; jmp *%0"
                     :
                     : "r"(entry), "r"(stack), "D"(boot_info)
                     : "memory");
    __builtin_unreachable();
}
