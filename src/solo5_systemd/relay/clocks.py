"""The moment from which a task's lines are wanted, on the clock that people set and on the one that nobody sets.

A host's clock may be set back while tasks run, as time synchronization does soon after a boot: what a task writes from
then on seems to be older than the task. So the moment is asked for and searched for by the one clock, and kept and
compared by the other. All times are microseconds.
"""

import time


def now() -> tuple[int, int]:
    """Since the epoch, and since boot. Who is held up between the two takes a moment for an earlier one."""
    since_boot = time.monotonic_ns() // 1000
    return time.time_ns() // 1000, since_boot


def monotonic(realtime: int) -> int:
    """This moment since the epoch, which is past, since boot; negative where it was before."""
    since_epoch, since_boot = now()
    return since_boot - max(0, since_epoch - realtime)


def earliest(realtime: int, since_boot: int) -> int:
    """Since the epoch: what was written from this moment on has no earlier time, however the clock was set since."""
    epoch_now, boot_now = now()
    return min(realtime, epoch_now - (boot_now - since_boot))
