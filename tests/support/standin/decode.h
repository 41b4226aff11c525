/* Just enough of x86-64's instruction format for the privileged instructions guests use. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

struct instruction {
    uint8_t rex;
    const uint8_t *opcode; /* two bytes if the first is 0x0f */
    uint64_t rest; /* the address behind it */
};

struct operand {
    unsigned reg; /* the register or opcode extension */
    bool is_register;
    unsigned rm; /* an index into the saved registers */
    uint64_t address;
    uint64_t next; /* the instruction behind */
};

struct instruction decode(const greg_t *registers);
struct operand decode_operand(const struct instruction *instruction, const greg_t *registers);
