/* From the tender's entry to guest_main and out again. */
#include "platform.h"

#define EXIT_ABORT 255

struct boot boot;

void arguments_parse(const char *line);
bool arguments_quiet(void);

_Noreturn void halt(int status)
{
    if (!arguments_quiet())
        print("Solo5: solo5_exit(%d) called\n", status);
    platform_halt(status);
}

_Noreturn void solo5_abort(void)
{
    if (!arguments_quiet())
        print("Solo5: solo5_abort() called\n");
    platform_halt(EXIT_ABORT);
}

_Noreturn void abort_at(const char *file, unsigned line, const char *reason)
{
    print("Solo5: ABORT: %s:%u: %s\n", file, line, reason);
    platform_halt(EXIT_ABORT);
}

/* The tender enters here as a C call: stack and first argument are set. */
_Noreturn void _start(const void *boot_info)
{
    boot = platform_boot(boot_info);
    arguments_parse(boot.command_line);
    halt(guest_main());
}

uint64_t memory_size(void) { return boot.memory_size; }

void *free_memory(void)
{
    extern char _end[];
    return _end;
}

unsigned device_count(void) { return boot.manifest->entries - 1; }

const struct device *device(unsigned handle) { return &boot.manifest->device[handle]; }
