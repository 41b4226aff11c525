"""The device nodes of tenders (/dev/kvm, /dev/net/tun), and the groups that may open them."""

import grp
import os
import stat

from solo5_systemd.errors import HostError
from solo5_systemd.image.manifest import Target
from solo5_systemd.unit.confinement import KVM, TUN, USER

ADVICE = {
    KVM: "Load the module (modprobe kvm_intel or kvm_amd), or run an spt image.",
    TUN: "Load the module: modprobe tun",
}


def groups_for(target: Target, *, nics: bool) -> tuple[str, ...]:
    """Return the supplementary groups that a task needs for its device nodes.

    Raises:
        HostError: a node is missing, or only root may open it.
    """
    nodes = ([KVM] if target is Target.HVT else []) + ([TUN] if nics else [])
    groups = (_group_for(node) for node in nodes)
    return tuple(dict.fromkeys(group for group in groups if group is not None))


def _group_for(node: str) -> str | None:
    try:
        status = os.stat(node)  # noqa: PTH116 - a device node, no path work
    except OSError as error:
        raise HostError(f"{node} does not exist: expected the device node.", ADVICE[node]) from error
    if not stat.S_ISCHR(status.st_mode):
        raise HostError(f"{node} is not a character device.", ADVICE[node])
    if status.st_mode & 0o006 == 0o006:
        return None
    if status.st_mode & 0o060 == 0o060 and status.st_gid != 0:
        return _group_name(node, status.st_gid)
    raise HostError(
        f"{node} has mode {stat.S_IMODE(status.st_mode):04o} and group {status.st_gid}: "
        f"expected a group through which user {USER} can read and write it.",
        f"chgrp kvm {node} && chmod 0660 {node}" if node == KVM else f"chmod 0666 {node}",
    )


def _group_name(node: str, group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError as error:
        raise HostError(
            f"{node} belongs to group {group}, which has no name: expected a group in the group database.",
            f"groupadd --system --gid {group} {node.rpartition('/')[2]}",
        ) from error
