"""The sandbox that every task's service receives.

Each setting is here because of what it takes away; those left out are left out for a reason:

* `LockPersonality=`: both tenders ask for their personality at start and abort where that is denied.
* `MemoryDenyWriteExecute=`: spt maps the guest's text executable after writing it; hvt does not, and gets it.
* `DynamicUser=`: a tap belongs to its user before the unit starts, so the user must be known before. It is one that
  `users/` has allocated for this task alone.
* `TemporaryFileSystem=/`: systemd keeps one mount for each path, and `ProtectSystem=strict` and `NoExecPaths=/` would
  take its place, with the host's file system in it. They hold for a `RootDirectory=`.
* `PrivatePIDs=`: the kernel gives the first process of a namespace no signal that it does not handle, and spt does not
  handle SIGTERM.
* `RestrictNetworkInterfaces=`: `IPAddressDeny=any` drops every packet already, at the same place.
* `RestrictFileSystems=`: disks lie on file systems of the operator's choice.
* `PrivateNetwork=`: the tap lives in the host's namespace. A task without NICs gets it.
* `SocketBindDeny=`: solo5.slice has it, for all tasks. In a unit of its own it would be most of what a start costs.
"""

from collections.abc import Iterable, Iterator, Sequence

from solo5_systemd.block.model import Disk
from solo5_systemd.image.manifest import DeviceKind, Manifest, Target
from solo5_systemd.unit.properties import Property
from solo5_systemd.unit.tender import LIBRARIES, Tender, sandbox_path

USER = "solo5"
"""The system user (sysusers.d) that stands for every task: a disk that it may write is a disk that tasks may have."""

MS_REC = 0x4000

KVM = "/dev/kvm"
TUN = "/dev/net/tun"

ROOT = "/run/solo5/root"
"""The root directory of every task: empty files and directories, on which systemd mounts what a task has. It makes them
itself, under names that are the same for all tasks of a tender."""

IMAGES = "/var/lib/solo5/images"
"""Below it images have names of their own, so it is a file system of the task's own."""

EMPTY = "ro,mode=0755,size=1M"

INACCESSIBLE = tuple(
    f"-+{path}"
    for path in ("/sys", "/dev/shm", "/dev/pts", "/dev/hugepages", "/tmp", "/var/tmp")  # noqa: S108
)
"""What comes with a root of one's own and is the host's: its devices and cgroups, and what all users of it write to.
Of `PrivateTmp=`, it leaves nothing that a tender could write to."""

DISCONNECTED_SINCE = 257
"""systemd's first release with the settings of `_newer`. `PrivateTmp=yes` of earlier ones makes and removes directories
in /tmp and /var/tmp of the host with each task, which no task would see."""

CLONE_NEWUTS = 0x04000000
"""The only namespaces that a task may make, and it lacks the capability for these. systemd (252 to 257) writes "none"
as an empty RestrictNamespaces=, which from the next daemon-reload on stands for every kind, user namespaces too."""

SYSTEM_CALLS = (
    # the loader and the C library, up to main()
    "access arch_prctl brk close execve faccessat faccessat2 fcntl fstat getegid geteuid getgid getpid getrandom "
    "gettid getuid lseek madvise mmap mprotect mremap munmap newfstatat open openat prlimit64 read readlink "
    "readlinkat readv rseq set_robust_list set_tid_address sched_getaffinity sigaltstack stat statx uname write writev "
    # memory, devices and the guest's own clock
    "clock_gettime clock_nanosleep epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 ftruncate ioctl "
    "memfd_create nanosleep poll ppoll pread64 pwrite64 timerfd_create timerfd_settime "
    # finding a tap and its MTU
    "bind getsockname getsockopt recvfrom recvmsg sendmsg sendto setsockopt socket "
    # threads, signals, and the tender's own sandbox
    "clone clone3 exit exit_group futex kill personality prctl restart_syscall rt_sigaction rt_sigprocmask "
    "rt_sigreturn sched_yield seccomp tgkill"
).split()
"""Measured with strace on both tenders of Solo5 0.12.1, with and without NICs and disks. Named one by one: that
costs half of what the groups of systemd.exec(5) cost, and takes away more. Where a
call takes a path, its form with a directory's descriptor is here too: newer C libraries use that (readlinkat: a static
program with glibc 2.41)."""


def confinement(
    manifest: Manifest,
    *,
    user: int,
    tender: Tender,
    image: str,
    disks: Sequence[Disk],
    groups: Iterable[str],
    systemd: int,
) -> tuple[Property, ...]:
    """The sandbox of one task.

    Args:
        manifest: decides which devices and address families are needed at all.
        user: the task's, and its group.
        tender: what is executed.
        image: path of the stored image, seen at the same place inside.
        disks: seen under names of their own inside.
        groups: supplementary groups without which a device node cannot be opened.
        systemd: its release, which has to know each setting.
    """
    return (
        *_identity(user, groups),
        *_files(tender, image, disks, manifest),
        *_execution(tender, image, disks),
        *_newer(systemd),
        *_devices(manifest, disks),
        *_kernel(manifest),
        *_network(manifest),
    )


def laying_down_privileges(user: int, groups: Sequence[str]) -> tuple[str, ...]:
    """What a scope, which PID 1 does not start, can have of it: another user, and nothing to gain (setpriv(1))."""
    others = f"--groups={','.join(groups)}" if groups else "--clear-groups"
    return (
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


def _identity(user: int, groups: Iterable[str]) -> Iterator[Property]:
    yield Property("User", "s", str(user))  # its group comes with its record
    yield Property("SupplementaryGroups", "as", list(groups))
    yield Property("NoNewPrivileges", "b", True)
    yield Property("CapabilityBoundingSet", "t", 0)
    yield Property("UMask", "u", 0o077)
    yield Property("LimitCORE", "t", 0)  # a core is the guest's memory
    yield Property("KeyringMode", "s", "private")
    yield Property("NotifyAccess", "s", "none")
    yield Property("RemoveIPC", "b", True)
    yield Property("PrivateUsers", "b", True)


def _files(tender: Tender, image: str, disks: Sequence[Disk], manifest: Manifest) -> Iterator[Property]:
    """A root of nothing but what is named here; every path is bound, none is searched for."""
    # Recursive for directories, without which a file system below one would be missing.
    read_only = [(path, path, True, MS_REC if path in LIBRARIES else 0) for path in tender.loads]
    read_only += [(path, path, False, 0) for path in (tender.path, image)]
    nodes = _nodes(manifest)
    writable = [(path, path, False, 0) for path in nodes]
    writable += [(disk.path, sandbox_path(disk), False, 0) for disk in disks]
    yield Property("RootDirectory", "s", ROOT)
    yield Property("MountAPIVFS", "b", False)  # else /sys and /dev/shm, and below them more than is hidden here
    yield Property("ProtectSystem", "s", "strict")
    yield Property("TemporaryFileSystem", "a(ss)", [(IMAGES, EMPTY)])
    yield Property("BindReadOnlyPaths", "a(ssbt)", read_only)
    if writable:  # an empty list would take back the read-only binds too: to systemd they are one list
        yield Property("BindPaths", "a(ssbt)", writable)
    yield Property("InaccessiblePaths", "as", list(INACCESSIBLE))
    yield Property("PrivateDevices", "b", True)
    yield Property("ProtectHome", "s", "yes")
    yield Property("ProtectProc", "s", "invisible")
    yield Property("ProcSubset", "s", "pid")


def _execution(tender: Tender, image: str, disks: Sequence[Disk]) -> Iterator[Property]:
    """Nothing can be executed, or mapped for it, but the tender: neither its image nor what it writes to a disk.

    A path stands for one mount, without those below it: each is named.
    """
    files = (image, *(sandbox_path(disk) for disk in disks))
    yield Property("NoExecPaths", "as", ["+/", *(f"+{path}" for path in files)])
    yield Property("ExecPaths", "as", [f"-+{path}" for path in (tender.path, *tender.loads)])


def _newer(systemd: int) -> Iterator[Property]:
    if systemd < DISCONNECTED_SINCE:
        yield Property("ProtectControlGroups", "b", True)
        return
    yield Property("PrivateTmpEx", "s", "disconnected")
    yield Property("ProtectControlGroupsEx", "s", "strict")  # a namespace, too: a task's slice and name are the host's
    yield Property("BindLogSockets", "b", False)  # of the journal's; with a root directory they are the default


def _nodes(manifest: Manifest) -> tuple[str, ...]:
    kvm = (KVM,) if manifest.target is Target.HVT else ()
    tun = (TUN,) if manifest.names(DeviceKind.NET_BASIC) else ()
    return kvm + tun


def _devices(manifest: Manifest, disks: Sequence[Disk]) -> Iterator[Property]:
    # "closed" and not "strict": systemd itself opens /dev/null for the tender's stdin.
    yield Property("DevicePolicy", "s", "closed")
    # By number: that is what was checked, and a path in DeviceAllow= is written into the unit's file without quotes.
    devices = (f"/dev/block/{disk.device[0]}:{disk.device[1]}" for disk in disks if disk.device is not None)
    nodes = [*_nodes(manifest), *devices]
    yield Property("DeviceAllow", "a(ss)", [(node, "rw") for node in nodes])


def _kernel(manifest: Manifest) -> Iterator[Property]:
    yield Property("MemoryDenyWriteExecute", "b", manifest.target is Target.HVT)
    yield Property("SystemCallArchitectures", "as", ["native"])
    yield Property("SystemCallFilter", "(bas)", (True, list(SYSTEM_CALLS)))
    yield Property("RestrictNamespaces", "t", CLONE_NEWUTS)
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
        yield Property(name, "b", True)


def _network(manifest: Manifest) -> Iterator[Property]:
    nics = bool(manifest.names(DeviceKind.NET_BASIC))
    # AF_NETLINK finds the tap, AF_INET asks for its MTU; neither ever carries traffic, hence the empty IP allowance.
    families = ["AF_INET", "AF_NETLINK"] if nics else []
    yield Property("RestrictAddressFamilies", "(bas)", (True, families))
    yield Property("PrivateNetwork", "b", not nics)
    yield Property("IPAddressDeny", "a(iayu)", [(2, bytes(4), 0), (10, bytes(16), 0)])
