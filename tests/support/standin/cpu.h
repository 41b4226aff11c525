/* The part of a CPU that a guest of hvt has and a process has not: privileged instructions, and
 * exceptions delivered through the guest's own descriptor table. */
#pragma once

#include <stdint.h>

/* Takes the process's fault signals. Guest memory ends at `memory_size`. */
void cpu_setup(uint64_t memory_size);
