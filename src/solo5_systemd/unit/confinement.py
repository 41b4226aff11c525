"""The sandbox properties of a task's service (systemd.exec(5), systemd.resource-control(5)).

Left out, with the reason:

* `LockPersonality=`: both tenders call personality(2) at start, and abort if it is denied.
* `MemoryDenyWriteExecute=` for spt: it writes the guest's text, then maps it executable. hvt does not, and gets it.
* `DynamicUser=`: a tap is owned by the user before the unit starts, so the UID is allocated before, by `users/`.
* `TemporaryFileSystem=/`: systemd keeps one mount per path; `ProtectSystem=strict` and `NoExecPaths=/` would replace
  it by the host's file system. With `RootDirectory=` they apply to that root.
* `PrivatePIDs=`: the kernel does not deliver unhandled signals to the first process of a PID namespace, and spt does
  not handle SIGTERM.
* `RestrictNetworkInterfaces=`: `IPAddressDeny=any` already drops every packet at the same hook.
* `RestrictFileSystems=`: disks are on file systems of the operator's choice.
* `PrivateNetwork=` with NICs: the namespace of the tap is made before the unit starts (`NetworkNamespacePath=`).
* `SocketBindDeny=`: solo5.slice has it for all tasks. Per unit it would be most of the cost of a start.
"""

from collections.abc import Iterable, Iterator, Sequence

from solo5_systemd.base.names import Target
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.storage.model import Disk
from solo5_systemd.task.properties import Property, unit_property
from solo5_systemd.task.property_types import ANY_ADDRESS, CLONE_NEWUTS, MS_REC
from solo5_systemd.unit.tender import LIBRARIES, Parts, Tender, sandbox_path

USER = "solo5"
"""The system user (sysusers.d) whose write permission decides which disks tasks may have."""

KVM = "/dev/kvm"
TUN = "/dev/net/tun"

ROOT = "/run/solo5/root"
"""RootDirectory= of every task: empty files and directories as mount points. systemd creates them; their names are the
same for all tasks of a tender."""

IMAGES = "/var/lib/solo5/images"
"""A tmpfs in each task's root, since the mount point below it is named after the task's image."""

EMPTY = "ro,mode=0755,size=1M"

INACCESSIBLE = tuple(
    f"-+{path}"
    for path in ("/sys", "/dev/shm", "/dev/pts", "/dev/hugepages", "/tmp", "/var/tmp")  # noqa: S108
)
"""Directories of the host that a RootDirectory= still shows: devices, cgroups, and world-writable directories. Nothing
that a tender could write to remains, as with `PrivateTmp=`."""

DISCONNECTED_SINCE = 257
"""First release of systemd with the properties of `_since_257`. `PrivateTmp=yes` of earlier releases would create
directories in the host's /tmp and /var/tmp for each task."""

FILE_SIZE = "LimitFSIZE"

FILTER_SIZE = 32 << 10
"""Bytes of the largest filter of system calls (BPF_MAXINSNS), which the tenders write to a file in memory."""

SYSTEM_CALLS = (
    # the dynamic loader and the C library, up to main()
    "access arch_prctl brk close execve faccessat faccessat2 fcntl fstat getegid geteuid getgid getpid getrandom "
    "gettid getuid lseek madvise mmap mprotect mremap munmap newfstatat open openat prlimit64 read readlink "
    "readlinkat readv rseq set_robust_list set_tid_address sched_getaffinity sigaltstack stat statx uname write writev "
    # memory, devices and the guest's own clock
    "clock_gettime clock_nanosleep epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 ioctl "
    "memfd_create nanosleep poll ppoll pread64 pwrite64 timerfd_create timerfd_settime "
    # the tap and its MTU
    "bind getsockname recvfrom recvmsg sendto socket "
    # threads, signals, and the tender's own sandbox
    "clone clone3 exit exit_group futex kill personality prctl restart_syscall rt_sigaction rt_sigprocmask "
    "rt_sigreturn sched_yield seccomp tgkill"
).split()
"""SystemCallFilter= of a task, measured with strace on both tenders of Solo5 0.12.1, with and without NICs and disks.
Single calls cost half as much as the groups of systemd.exec(5), and allow less. Of calls that take a path, the *at form
is included too: newer C libraries use it (readlinkat: a static program with glibc 2.41)."""


def confinement(parts: Parts, user: int | str, image_source: str = "") -> tuple[Property, ...]:
    """Return the sandbox properties of one task.

    Args:
        user: UID of the task, or the name of its user; its GID is the same.
        image_source: path of the image outside of the sandbox; empty: the same as inside.
    """
    manifest, tender, disks = parts.image.manifest, parts.tender, parts.disks
    return (
        *_identity(user, parts.groups),
        *_files(tender, (image_source or parts.image.path, parts.image.path), disks, manifest),
        *_since_257(parts.systemd),
        *_devices(manifest, disks),
        *_kernel(manifest),
        *_network(manifest),
    )


def scope_command(user: int, groups: Sequence[str], namespace: str) -> tuple[str, ...]:
    """Return the prefix of a scope's command line: PID 1 sets no user, capabilities and network namespace of a scope.

    Args:
        groups: supplementary groups that the device nodes require.
        namespace: path of the task's network namespace; empty: it has no NIC, and gets an empty one.
    """
    others = f"--groups={','.join(groups)}" if groups else "--clear-groups"
    return (
        *(("/usr/bin/nsenter", f"--net={namespace}") if namespace else ("/usr/bin/unshare", "--net")),
        "--",
        "/usr/bin/setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        others,
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
        "--reset-env",
        "--",
    )


def _identity(user: int | str, groups: Iterable[str]) -> Iterator[Property]:
    yield unit_property("User", str(user))  # its group is in its userdb record
    yield unit_property("SupplementaryGroups", list(groups))
    yield unit_property("NoNewPrivileges", True)
    yield unit_property("CapabilityBoundingSet", 0)
    yield unit_property("UMask", 0o077)
    yield unit_property("LimitCORE", 0)  # a core dump contains the guest's memory
    yield unit_property("KeyringMode", "private")
    yield unit_property("NotifyAccess", "none")
    yield unit_property("RemoveIPC", True)
    yield unit_property("PrivateUsers", True)


def _files(tender: Tender, image: tuple[str, str], disks: Sequence[Disk], manifest: Manifest) -> Iterator[Property]:
    """Yield the root directory and the files in it: launcher, tender, libraries, image, device nodes and disks.

    Of these only launcher, tender and its libraries can be executed, or mapped executable.
    """
    # Recursive for directories, else a file system mounted below one would be missing.
    read_only = [(path, path, True, MS_REC if path in LIBRARIES else 0) for path in tender.loads]
    programs = [(path, path) for path in (tender.path, tender.launcher) if path]
    read_only += [(source, path, False, 0) for source, path in (*programs, image)]
    nodes = _nodes(manifest)
    writable = [(path, path, False, 0) for path in nodes]
    writable += [(disk.path, sandbox_path(disk), False, 0) for disk in disks]
    yield unit_property("RootDirectory", ROOT)
    yield unit_property("MountAPIVFS", False)  # else /sys and /dev/shm appear, with mounts below them
    yield unit_property("ProtectSystem", "strict")
    yield unit_property("TemporaryFileSystem", [(IMAGES, EMPTY)])
    yield unit_property("BindReadOnlyPaths", read_only)
    if writable:  # an empty list would reset BindReadOnlyPaths= too
        yield unit_property("BindPaths", writable)
    yield unit_property("InaccessiblePaths", list(INACCESSIBLE))
    yield unit_property("PrivateDevices", True)
    yield unit_property("ProtectHome", "yes")
    yield unit_property("ProtectProc", "invisible")
    yield unit_property("ProcSubset", "pid")
    # Image and disks are listed, since a path in NoExecPaths= does not include the mounts below it.
    yield unit_property("NoExecPaths", ["+/", *(f"+{path}" for path in (image[1], *map(sandbox_path, disks)))])
    yield unit_property("ExecPaths", [f"-+{path}" for path in (tender.path, tender.launcher, *tender.loads) if path])


def _since_257(systemd: int) -> Iterator[Property]:
    if systemd < DISCONNECTED_SINCE:
        yield unit_property("ProtectControlGroups", True)
        return
    yield unit_property("PrivateTmpEx", "disconnected")
    yield unit_property("ProtectControlGroupsEx", "strict")  # a cgroup namespace hides the task's slice and name
    yield unit_property("BindLogSockets", False)  # the journal's sockets; default with RootDirectory=


def _nodes(manifest: Manifest) -> tuple[str, ...]:
    kvm = (KVM,) if manifest.target is Target.HVT else ()
    tun = (TUN,) if manifest.nics else ()
    return kvm + tun


def _devices(manifest: Manifest, disks: Sequence[Disk]) -> Iterator[Property]:
    # Not "strict": systemd opens /dev/null for the tender's stdin.
    yield unit_property("DevicePolicy", "closed")
    # By device number: that is what was checked, and systemd writes a path in DeviceAllow= unquoted.
    devices = (f"/dev/block/{disk.device[0]}:{disk.device[1]}" for disk in disks if disk.device is not None)
    nodes = [*_nodes(manifest), *devices]
    yield unit_property("DeviceAllow", [(node, "rw") for node in nodes])
    # So no file of a disk becomes larger than the largest disk, and exceeds its quota. Of a declared task, no size is
    # known.
    if disks and all(disk.size and disk.device is None for disk in disks):
        yield unit_property(FILE_SIZE, max(FILTER_SIZE, *(disk.size for disk in disks)))


def _kernel(manifest: Manifest) -> Iterator[Property]:
    yield unit_property("MemoryDenyWriteExecute", manifest.target is Target.HVT)
    yield unit_property("SystemCallArchitectures", ["native"])
    yield unit_property("SystemCallFilter", (True, list(SYSTEM_CALLS)))
    yield unit_property("RestrictNamespaces", CLONE_NEWUTS)
    for name in (
        "PrivateIPC",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "RestrictRealtime",
        "RestrictSUIDSGID",
    ):
        yield unit_property(name, True)


def _network(manifest: Manifest) -> Iterator[Property]:
    nics = bool(manifest.nics)
    # AF_NETLINK for the tap, AF_INET for its MTU (SIOCGIFMTU); neither carries traffic, so IPAddressDeny= is "any".
    families = ["AF_INET", "AF_NETLINK"] if nics else []
    yield unit_property("RestrictAddressFamilies", (True, families))
    yield unit_property("PrivateNetwork", not nics)
    yield unit_property("IPAddressDeny", ANY_ADDRESS)
