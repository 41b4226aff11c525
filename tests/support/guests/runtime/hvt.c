/* hvt, ABI 2: the guest has a virtual machine to itself and calls the tender by writing the
 * address of an argument struct to an I/O port. */
#include "platform.h"
#include "traps.h"

ABI(1, 2);

enum { WALLTIME = 1, PUTS, POLL, BLOCK_WRITE, BLOCK_READ, NET_WRITE, NET_READ, HALT };
#define PORT_BASE 0x500

struct boot_info {
    uint64_t memory_size, kernel_end, cycle_frequency;
    const char *command_line;
    const struct manifest *manifest;
};

/* The tender sees the struct through memory, so the compiler must have written it. */
static void hypercall(unsigned number, void *arguments)
{
    __asm__ volatile("outl %0, %w1" : : "a"((uint32_t)(uint64_t)arguments), "d"(PORT_BASE + number)
                     : "memory");
}

struct boot platform_boot(const void *boot_info)
{
    const struct boot_info *info = boot_info;
    traps_enable();
    return (struct boot) { info->memory_size, info->command_line, info->manifest };
}

_Noreturn void platform_halt(int status)
{
    struct {
        void *cookie;
        int status;
    } call = { NULL, status };
    for (;;)
        hypercall(HALT, &call);
}

void print_bytes(const char *data, size_t size)
{
    struct {
        const char *data;
        size_t size;
    } call = { data, size };
    hypercall(PUTS, &call);
}

struct block_call {
    uint64_t handle, offset;
    const void *data;
    size_t size;
    int result;
};

static bool block_transfer(unsigned number, unsigned handle, uint64_t offset, const void *sector)
{
    struct block_call call = { handle, offset, sector, device(handle)->block.sector_size, -1 };
    hypercall(number, &call);
    return call.result == 0;
}

bool block_read(unsigned handle, uint64_t offset, void *sector)
{
    return block_transfer(BLOCK_READ, handle, offset, sector);
}

bool block_write(unsigned handle, uint64_t offset, const void *sector)
{
    return block_transfer(BLOCK_WRITE, handle, offset, sector);
}

struct net_call {
    uint64_t handle;
    const void *data;
    size_t size;
    int result;
};

size_t net_read(unsigned handle, void *frame, size_t size)
{
    struct net_call call = { handle, frame, size, -1 };
    hypercall(NET_READ, &call);
    return call.result == 0 ? call.size : 0;
}

bool net_write(unsigned handle, const void *frame, size_t size)
{
    struct net_call call = { handle, frame, size, -1 };
    hypercall(NET_WRITE, &call);
    return call.result == 0;
}

uint64_t now(void)
{
    uint64_t nanoseconds;
    hypercall(WALLTIME, &nanoseconds);
    return nanoseconds;
}

uint64_t wait_until(uint64_t deadline)
{
    uint64_t start = now();
    struct {
        uint64_t timeout, ready;
        int result;
    } call = { deadline > start ? deadline - start : 0, 0, 0 };
    hypercall(POLL, &call);
    return call.ready;
}
