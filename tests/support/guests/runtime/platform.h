/* What start.c needs from the ABI the guest is built for: hvt.c or spt.c. The rest of the ABI is
 * the device, clock and console part of guest.h. */
#pragma once

#include "guest.h"

struct boot {
    uint64_t memory_size;
    const char *command_line;
    const struct manifest *manifest;
};

struct boot platform_boot(const void *boot_info);
_Noreturn void platform_halt(int status);

extern struct boot boot;
