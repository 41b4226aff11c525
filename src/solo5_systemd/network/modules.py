"""The kernel's modules that networks need, and its errors for one that is missing.

The kernel loads a module when a program first needs it. It cannot where the modules of the running kernel are not
installed (a minimal kernel, one that was replaced since the boot), in a container of a host without them, or after
kernel.modules_disabled=1. The errors are those of Linux 6.18 for a kind that no module has:

    rtnetlink, a link of an unknown kind                EOPNOTSUPP (rtnl_newlink of net/core/rtnetlink.c)
    open(2) of a character device without a driver      ENODEV (misc_open); ENOENT without the node
    a netlink socket of an unknown protocol             EPROTONOSUPPORT
    nfnetlink, an unknown subsystem                     EINVAL; in a transaction EOPNOTSUPP
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from solo5_systemd.base.errors import HostError

BRIDGE, MACVLAN, VETH, TUN = "bridge", "macvlan", "veth", "tun"
NF_TABLES, NFNETLINK_LOG = "nf_tables", "nfnetlink_log"

_ABSENT = (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV)


@contextmanager
def needing(module: str, what: str) -> Iterator[None]:
    """Turn the kernel's error for a missing module into a HostError that names it; others are raised as they are.

    `what`: what it makes, such as `bridge solo5-default`.
    """
    try:
        yield
    except Exception as error:
        if getattr(error, "code", getattr(error, "errno", None)) not in _ABSENT:  # pyroute2 has its own class
            raise
        reason = error.args[1] if len(error.args) > 1 else error
        raise HostError(
            f"{what} cannot be made: {reason}; expected a kernel with module {module}.", remedy(module)
        ) from error


def remedy(*modules: str) -> str:
    """Return what to do about missing modules."""
    several = "-a " if len(modules) > 1 else ""
    return (
        f"`modprobe {several}{' '.join(modules)}` loads it; if that finds none, install the modules of the running "
        "kernel (`uname -r`), or boot the kernel that is installed. A container has those of its host."
    )


def nft_hint(reason: str, modules: Sequence[str]) -> str:
    """Return what to do about a change that nftables refused: with modules where it may be for want of one.

    A missing table or element has the same error as a missing module.
    """
    shown = "`nft list ruleset` shows the present rules."
    absence = ("No such file or directory", "Operation not supported")
    return f"{shown} If a module is missing: {remedy(*modules)}" if any(each in reason for each in absence) else shown
