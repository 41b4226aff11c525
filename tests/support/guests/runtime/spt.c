/* spt, ABI 2: the guest is part of the tender's process and makes the system calls that the
 * tender's filter leaves it, on the descriptors the manifest names. */
#include "platform.h"

ABI(2, 2);

enum { READ = 0, WRITE = 1, PREAD = 17, PWRITE = 18, CLOCK_GETTIME = 228, EXIT_GROUP = 231,
    EPOLL_PWAIT = 281, TIMERFD_SETTIME = 286 };
enum { STDOUT = 1, CLOCK_MONOTONIC = 1, TFD_TIMER_ABSTIME = 1, EINTR = 4 };
#define TIMER_EVENT 0xfffffffeUL /* how the tender marks the timer in the epoll set */

struct boot_info {
    uint64_t memory_size, kernel_end;
    const char *command_line;
    const struct manifest *manifest;
    int epoll_fd, timer_fd;
};
struct time {
    uint64_t seconds, nanoseconds;
};
struct event {
    uint32_t events;
    uint64_t data;
} __attribute__((packed));

static int epoll_fd, timer_fd;

static long syscall6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long syscall4(long number, long a, long b, long c, long d)
{
    return syscall6(number, a, b, c, d, 0, 0);
}

struct boot platform_boot(const void *boot_info)
{
    const struct boot_info *info = boot_info;
    epoll_fd = info->epoll_fd;
    timer_fd = info->timer_fd;
    return (struct boot) { info->memory_size, info->command_line, info->manifest };
}

_Noreturn void platform_halt(int status)
{
    for (;;)
        syscall4(EXIT_GROUP, status, 0, 0, 0);
}

/* A console that fails is no reason to stop: the guest cannot tell anybody. */
void print_bytes(const char *data, size_t size)
{
    syscall4(WRITE, STDOUT, (long)data, (long)size, 0);
}

bool block_read(unsigned handle, uint64_t offset, void *sector)
{
    const struct device *d = device(handle);
    return syscall4(PREAD, (long)d->host, (long)sector, d->block.sector_size, (long)offset)
        == d->block.sector_size;
}

bool block_write(unsigned handle, uint64_t offset, const void *sector)
{
    const struct device *d = device(handle);
    return syscall4(PWRITE, (long)d->host, (long)sector, d->block.sector_size, (long)offset)
        == d->block.sector_size;
}

size_t net_read(unsigned handle, void *frame, size_t size)
{
    long n = syscall4(READ, (long)device(handle)->host, (long)frame, (long)size, 0);
    return n > 0 ? (size_t)n : 0;
}

bool net_write(unsigned handle, const void *frame, size_t size)
{
    return syscall4(WRITE, (long)device(handle)->host, (long)frame, (long)size, 0) == (long)size;
}

uint64_t now(void)
{
    struct time t;
    syscall4(CLOCK_GETTIME, CLOCK_MONOTONIC, (long)&t, 0, 0);
    return t.seconds * SECOND + t.nanoseconds;
}

uint64_t wait_until(uint64_t deadline)
{
    /* A zero time would disarm the timer. */
    struct time at[2] = { { 0, 0 }, { deadline / SECOND, deadline % SECOND | 1 } };
    struct event events[64];
    uint64_t ready = 0;
    long n;
    syscall4(TIMERFD_SETTIME, timer_fd, TFD_TIMER_ABSTIME, (long)at, 0);
    do
        n = syscall6(EPOLL_PWAIT, epoll_fd, (long)events, 64, -1, 0, 0);
    while (n == -EINTR);
    for (long i = 0; i < n; i++)
        if (events[i].data != TIMER_EVENT)
            ready |= 1UL << events[i].data;
    return ready;
}
