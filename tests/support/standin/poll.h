/* What a guest waits for: its network devices, and a timer that gives the wait its end. */
#pragma once

#include <stdint.h>

struct poll_set {
    int epoll_fd, timer_fd;
};

#define POLL_TIMER 0xfffffffeUL /* how the timer is marked among the handles */

struct poll_set poll_set_open(void);
void poll_set_add(struct poll_set set, int fd, uint64_t handle);
