/* hvt: the guest has what looks to it like a machine of its own. The real tender gives it one with
 * KVM; here it runs as a part of this process, and cpu.c supplies what a process lacks. */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "abi.h"
#include "cpu.h"
#include "enter.h"
#include "hypercall.h"
#include "poll.h"
#include "raw.h"
#include "sandbox.h"

#define BOOT_INFO 0x10000
#define LOW_MEMORY_END 0x100000 /* what the tender wrote, and the guest only reads */
#define LARGE_PAGE (2 * MIB)
#define MEMORY_MAX (4096 * MIB)
#define NET_RING (2 * MIB) /* host memory the real tender adds for a guest with a network */

struct boot_info {
    uint64_t memory_size, image_end, cycle_frequency, command_line, manifest;
    uint32_t host_features, guest_features; /* none: our guests see no network ring */
    uint64_t net_ring;
};

const uint32_t abi_target = 1;
const char abi_target_name[] = "solo5-hvt";
const char abi_option_help[] = "";

static struct poll_set waiting;

bool abi_option(const char *word)
{
    (void)word;
    return false;
}

/* --- signals --- */

static char farewell[2][64];

/* While the guest runs, FS may be its own, so nothing of the C library can be used here. */
static void on_stop_signal(int signal)
{
    const char *text = farewell[signal == SIGTERM];
    uint64_t size = 0;
    while (text[size])
        size++;
    raw_syscall(SYS_write, STDERR_FILENO, (uint64_t)text, size);
    raw_syscall(SYS_exit_group, 1, 0, 0);
}

static void stop_on(int signal)
{
    struct sigaction action = { .sa_handler = on_stop_signal, .sa_flags = SA_ONSTACK };
    sigfillset(&action.sa_mask);
    snprintf(farewell[signal == SIGTERM], sizeof farewell[0], "%.32s: Exiting on signal %d\n",
        program_invocation_short_name, signal);
    if (sigaction(signal, &action, NULL) == -1)
        err(1, "Could not install signal handler");
}

/* --- memory --- */

static uint64_t rounded_memory(uint64_t wanted)
{
    uint64_t size = wanted / LARGE_PAGE * LARGE_PAGE;
    if (!size)
        size = LARGE_PAGE;
    if (size != wanted)
        warnx("adjusting memory to %lu bytes", size);
    if (size > MEMORY_MAX)
        errx(1, "guest memory size %lu bytes exceeds the max size %lu bytes", size, MEMORY_MAX);
    return size;
}

/* With a network the ring's memory comes on top, but never beyond the maximum. */
static uint64_t reserve_memory(uint64_t wanted, bool with_net)
{
    uint64_t guest = rounded_memory(wanted), all = guest + (with_net ? NET_RING : 0);
    if (all > MEMORY_MAX) {
        guest -= NET_RING;
        all = MEMORY_MAX;
    }
    void *at = (void *)GUEST_MEMORY_BASE;
    if (mmap(at, all - GUEST_MEMORY_BASE, PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
        != at)
        err(1, "Error allocating guest memory");
    return guest;
}

/* Text becomes a mapping of a file of its own: memory that was writable could not be made executable
 * under systemd's MemoryDenyWriteExecute=, which the real tender gets along with. */
static int map_text(uint64_t start, uint64_t end)
{
    int fd = (int)syscall(SYS_memfd_create, "text", MFD_CLOEXEC);
    size_t size = end - start;
    if (fd == -1 || write(fd, (void *)start, size) != (ssize_t)size)
        return -1;
    void *at = mmap((void *)start, size, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? -1 : 0;
}

int memory_protect(uint64_t start, uint64_t end, int protection)
{
    if (protection & PROT_EXEC)
        return map_text(start, end);
    return mprotect((void *)start, end - start, protection);
}

/* --- threads --- */

static sem_t ready;

static void *sleep_in(void *fd)
{
    uint64_t event;
    sem_post(&ready);
    for (;;)
        if (read(*(int *)fd, &event, sizeof event) == -1)
            return NULL;
}

static void start_thread(int *fd)
{
    pthread_t thread;
    *fd = eventfd(0, EFD_CLOEXEC);
    if (*fd == -1 || pthread_create(&thread, NULL, sleep_in, fd) != 0)
        err(1, "Could not start a thread");
    sem_wait(&ready); /* what a thread does to come up, the filter would not let it do */
}

/* What else lives in the process: KVM's own worker, which no signal reaches, and with a network the
 * thread that serves its ring. They do nothing here but outlive a main thread that its filter kills. */
static void start_threads(bool with_net)
{
    static int worker_fd, ring_fd;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    start_thread(&worker_fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (with_net)
        start_thread(&ring_fd);
}

/* --- the story --- */

uint64_t abi_prepare(uint64_t memory_size, const struct manifest *manifest)
{
    stop_on(SIGINT);
    stop_on(SIGTERM);
    bool with_net = manifest_has_net(manifest);
    if (open("/dev/kvm", O_RDWR | O_CLOEXEC) == -1)
        err(1, "Could not open: /dev/kvm");
    uint64_t guest_memory = reserve_memory(memory_size, with_net);
    waiting = poll_set_open();
    start_threads(with_net);
    return guest_memory;
}

void abi_poll_add(int fd, uint64_t handle) { poll_set_add(waiting, fd, handle); }

static uint64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000UL + (uint64_t)t.tv_nsec;
}

/* Cycles per second, measured over 2 ms: to about one in ten thousand. */
static uint64_t cycle_frequency(void)
{
    uint64_t from = nanoseconds(), cycles = __rdtsc(), elapsed;
    do
        elapsed = nanoseconds() - from;
    while (elapsed < 2000000);
    return (__rdtsc() - cycles) * 1000000000UL / elapsed;
}

static void close_sandbox(void)
{
    static const int allowed[] = { SYS_ioctl, SYS_read, SYS_write, SYS_pread64, SYS_pwrite64,
        SYS_epoll_pwait, SYS_timerfd_settime, SYS_clock_gettime, SYS_exit_group, SYS_rt_sigreturn,
        SYS_futex, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_madvise, SYS_rt_sigprocmask, SYS_exit,
        SYS_close, SYS_arch_prctl /* ours: a virtual machine has an FS of its own */ };
    for (unsigned i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        sandbox_allow(allowed[i]);
    sandbox_close();
}

_Noreturn void abi_enter(const struct start *start)
{
    struct placed placed = place_inputs(BOOT_INFO + sizeof(struct boot_info), start);
    *(struct boot_info *)BOOT_INFO = (struct boot_info) {
        .memory_size = start->memory_size,
        .image_end = start->image_end,
        .cycle_frequency = cycle_frequency(),
        .command_line = placed.command_line,
        .manifest = placed.manifest,
    };
    if (memory_protect(GUEST_MEMORY_BASE, LOW_MEMORY_END, PROT_READ) == -1)
        err(1, "mprotect");
    hypercall_setup(start->manifest, waiting, start->memory_size);
    cpu_setup(start->memory_size);
    close_sandbox();
    enter_guest(start->entry, start->memory_size - 8, BOOT_INFO);
}
