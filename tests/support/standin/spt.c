/* spt: the guest is a part of this process, and makes the few system calls that the filter leaves
 * it on the descriptors its manifest names. Nothing of the tender runs again. */
#include <asm/prctl.h>
#include <assert.h>
#include <err.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "enter.h"
#include "poll.h"
#include "sandbox.h"

#define BOOT_INFO 0x11000

struct boot_info {
    uint64_t memory_size, image_end, command_line, manifest;
    int epoll_fd, timer_fd;
};

const uint32_t abi_target = 2;
const char abi_target_name[] = "solo5-spt";
const char abi_option_help[] = "    --x-exec-heap\n";

static struct poll_set waiting;
static int heap_protection = PROT_READ | PROT_WRITE;

bool abi_option(const char *word)
{
    if (strncmp(word, "--x-exec-heap", 13) != 0)
        return false;
    warnx("WARNING: --x-exec-heap makes the heap and stack executable.");
    heap_protection |= PROT_EXEC;
    return true;
}

uint64_t abi_prepare(uint64_t size, const struct manifest *manifest)
{
    (void)manifest;
    /* A size with no end below us is a size no host has: the real tender asserts as well. */
    extern char __executable_start;
    assert(size - 1 < (uint64_t)&__executable_start);
    void *at = (void *)GUEST_MEMORY_BASE;
    if (mmap(at, size - GUEST_MEMORY_BASE, heap_protection,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
        != at)
        err(1, "Error allocating guest memory");
    waiting = poll_set_open();
    return size;
}

int memory_protect(uint64_t start, uint64_t end, int protection)
{
    return mprotect((void *)start, end - start, protection);
}

void abi_poll_add(int fd, uint64_t handle) { poll_set_add(waiting, fd, handle); }

static void allow_devices(const struct manifest *manifest)
{
    FOR_EACH_ATTACHED(d, manifest, DEVICE_NET)
    {
        SANDBOX_ALLOW_IF(SYS_read, { 0, EQUAL, (uint64_t)d->fd });
        SANDBOX_ALLOW_IF(SYS_write, { 0, EQUAL, (uint64_t)d->fd });
    }
    /* Whole sectors within the disk: a guest must not make the file behind it grow. */
    static const int transfers[] = { SYS_pread64, SYS_pwrite64 };
    FOR_EACH_ATTACHED(d, manifest, DEVICE_BLOCK)
    for (unsigned i = 0; i < 2; i++)
        SANDBOX_ALLOW_IF(transfers[i], { 0, EQUAL, (uint64_t)d->fd },
            { 2, EQUAL, d->block.sector_size },
            { 3, AT_MOST, d->block.capacity - d->block.sector_size });
}

static void close_sandbox(const struct manifest *manifest)
{
    SANDBOX_ALLOW_IF(SYS_write, { 0, EQUAL, STDOUT_FILENO });
    SANDBOX_ALLOW_IF(SYS_epoll_pwait, { 0, EQUAL, (uint64_t)waiting.epoll_fd });
    SANDBOX_ALLOW_IF(SYS_timerfd_settime, { 0, EQUAL, (uint64_t)waiting.timer_fd });
    SANDBOX_ALLOW_IF(SYS_clock_gettime, { 0, EQUAL, CLOCK_MONOTONIC });
    SANDBOX_ALLOW_IF(SYS_clock_gettime, { 0, EQUAL, CLOCK_REALTIME });
    SANDBOX_ALLOW_IF(SYS_arch_prctl, { 0, EQUAL, ARCH_SET_FS });
    sandbox_allow(SYS_exit_group);
    allow_devices(manifest);
    sandbox_close();
}

_Noreturn void abi_enter(const struct start *start)
{
    struct placed placed = place_inputs(BOOT_INFO + sizeof(struct boot_info), start);
    *(struct boot_info *)BOOT_INFO = (struct boot_info) {
        .memory_size = start->memory_size,
        .image_end = start->image_end,
        .command_line = placed.command_line,
        .manifest = placed.manifest,
        .epoll_fd = waiting.epoll_fd,
        .timer_fd = waiting.timer_fd,
    };
    close_sandbox(start->manifest);
    enter_guest(start->entry, start->memory_size - 8, BOOT_INFO);
}
