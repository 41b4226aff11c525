"""How many files the plugin may have open: as many as it can, since statistics hold five for each task.

The soft limit is there for users of select(2) (systemd.exec(5), LimitNOFILE=). What the plugin executes may be one.
"""

import resource

GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit that this process was started with."""


def raise_limit() -> None:
    """Have the soft limit be the hard one."""
    hard = GIVEN[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limit(pid: int) -> None:
    """Give a child the limits that this process was given.

    Raises:
        ProcessLookupError: it has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, GIVEN)
