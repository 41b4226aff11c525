#include "poll.h"

#include <err.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

void poll_set_add(struct poll_set set, int fd, uint64_t handle)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = handle };
    if (epoll_ctl(set.epoll_fd, EPOLL_CTL_ADD, fd, &event) == -1)
        err(1, "epoll_ctl(EPOLL_CTL_ADD) failed");
}

struct poll_set poll_set_open(void)
{
    struct poll_set set = { epoll_create1(0), timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK) };
    if (set.epoll_fd == -1 || set.timer_fd == -1)
        err(1, "Could not create wait set");
    poll_set_add(set, set.timer_fd, POLL_TIMER);
    return set;
}
