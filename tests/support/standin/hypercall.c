#include "hypercall.h"

#include <assert.h>
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "abi.h"

#define PORT_BASE 0x500
#define SECOND 1000000000UL

enum { WALLTIME = 1, PUTS, POLL, BLOCK_WRITE, BLOCK_READ, NET_WRITE, NET_READ, HALT };
enum { OK, AGAIN, INVALID };

static struct manifest *devices;
static struct poll_set waiting;
static uint64_t memory_end;

void hypercall_setup(struct manifest *manifest, struct poll_set set, uint64_t memory_size)
{
    devices = manifest;
    waiting = set;
    memory_end = memory_size;
}

/* A guest may hand over any address; only its own memory is good. */
static void *guest(uint64_t address, uint64_t size)
{
    uint64_t end;
    if (address < GUEST_MEMORY_BASE || __builtin_add_overflow(address, size, &end) || end > memory_end)
        errx(1, "Invalid guest access: gpa=0x%lx sz=%lu", address, size);
    return (void *)address;
}

static void walltime(uint64_t *out)
{
    struct timespec t;
    int rc = clock_gettime(CLOCK_REALTIME, &t);
    assert(rc == 0);
    *out = (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

struct puts_call {
    uint64_t data, size;
};

/* A console that fails kills this thread: the assertion's signal is not on the filter's list. Other
 * threads live on, so the process stays as a zombie that nobody can wait for. */
static void console(const struct puts_call *call)
{
    ssize_t n = write(STDOUT_FILENO, guest(call->data, call->size), call->size);
    assert(n >= 0);
}

struct poll_call {
    uint64_t timeout, ready;
    int result;
};

static void poll_devices(struct poll_call *call)
{
    struct epoll_event events[MANIFEST_ENTRIES_MAX + 1];
    /* A zero time would disarm the timer. */
    struct itimerspec at = {
        .it_value = { (time_t)(call->timeout / SECOND), (long)(call->timeout % SECOND | 1) }
    };
    uint64_t ready = 0;
    int n;
    if (timerfd_settime(waiting.timer_fd, 0, &at, NULL) == -1)
        err(1, "timerfd_settime() failed");
    do
        n = epoll_pwait(waiting.epoll_fd, events, MANIFEST_ENTRIES_MAX + 1, -1, NULL);
    while (n == -1 && errno == EINTR);
    for (int i = 0; i < n; i++)
        if (events[i].data.u64 != POLL_TIMER)
            ready |= 1UL << events[i].data.u64;
    call->ready = ready;
    call->result = __builtin_popcountl(ready);
}

/* There is no answer for an error of the host: it ends the guest. */
static void require_done(const char *what, ssize_t n, size_t size)
{
    if (n == -1)
        fprintf(stderr, "Fatal error when %s: %s\n", what, strerror(errno));
    else if ((size_t)n != size)
        fprintf(stderr, "Fatal error: %s only %ld out of %lu bytes\n", what[0] == 'r' ? "read" : "wrote", n, size);
    else
        return;
    exit(1);
}

struct block_call {
    uint64_t handle, offset, data, size;
    int result;
};

static void block_transfer(struct block_call *call, bool writing)
{
    const struct device *d = manifest_handle(devices, call->handle, DEVICE_BLOCK);
    uint64_t end;
    call->result = INVALID;
    if (!d || __builtin_add_overflow(call->offset, call->size, &end) || end > d->block.capacity)
        return;
    void *data = guest(call->data, call->size);
    off_t offset = (off_t)call->offset;
    require_done(writing ? "writing" : "reading",
        writing ? pwrite(d->fd, data, call->size, offset) : pread(d->fd, data, call->size, offset),
        call->size);
    call->result = OK;
}

struct net_call {
    uint64_t handle, data, size;
    int result;
};

static void net_write(struct net_call *call)
{
    const struct device *d = manifest_handle(devices, call->handle, DEVICE_NET);
    call->result = d ? OK : INVALID;
    if (d)
        require_done("writing", write(d->fd, guest(call->data, call->size), call->size), call->size);
}

static void net_read(struct net_call *call)
{
    const struct device *d = manifest_handle(devices, call->handle, DEVICE_NET);
    call->result = INVALID;
    if (!d)
        return;
    ssize_t n = read(d->fd, guest(call->data, call->size), call->size);
    call->result = AGAIN;
    if (n == 0 || (n == -1 && errno == EAGAIN))
        return;
    if (n == -1)
        require_done("reading", n, 0);
    call->size = (uint64_t)n;
    call->result = OK;
}

struct halt_call {
    uint64_t cookie;
    int status;
};

void hypercall(uint16_t port, uint32_t argument)
{
    switch (port - PORT_BASE) {
    case WALLTIME:
        return walltime(guest(argument, sizeof(uint64_t)));
    case PUTS:
        return console(guest(argument, sizeof(struct puts_call)));
    case POLL:
        return poll_devices(guest(argument, sizeof(struct poll_call)));
    case BLOCK_WRITE:
        return block_transfer(guest(argument, sizeof(struct block_call)), true);
    case BLOCK_READ:
        return block_transfer(guest(argument, sizeof(struct block_call)), false);
    case NET_WRITE:
        return net_write(guest(argument, sizeof(struct net_call)));
    case NET_READ:
        return net_read(guest(argument, sizeof(struct net_call)));
    case HALT:
        _exit(((struct halt_call *)guest(argument, sizeof(struct halt_call)))->status);
    default:
        errx(1, "Invalid guest port access: port=0x%x", port);
    }
}
