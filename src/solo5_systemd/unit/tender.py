"""A tender and its command line, with the paths of disks in the sandbox; the inputs of a unit that executes it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from solo5_systemd.base.names import Target
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.resolver import UNSET, Resolver
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.guest_memory import guest_memory


@dataclass(frozen=True, kw_only=True)
class Tender:
    """A tender program, with what its --version prints.

    Attributes:
        loads: the libraries that its loader maps, as files; `LIBRARIES` if they could not be determined.
        loads_because: why they could not be determined; empty if they were.
        launcher: the program that executes the tender under a filter of arguments; empty: not installed.
    """

    path: str
    target: Target
    version: str
    abi_version: int
    loads: tuple[str, ...] = ()
    loads_because: str = ""
    launcher: str = ""


LAUNCHER = "/usr/libexec/solo5-confine"
"""The launcher, of the Debian package solo5-confine (`src/confine`)."""

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
"""The built-in search path of the dynamic loader, and the loader itself."""


DISKS = "/run/solo5-disks"
PRIVATE = "private-disk-ends-with-its-first-run"
"""A directory of private disks. PID 1 cannot mount them again when it restarts the service, and logs this path."""


def sandbox_path(disk: Disk) -> str:
    """Return the path of a disk in a service's mount namespace: without blanks, whatever its path on the host."""
    return f"{DISKS}/{PRIVATE}/{disk.disk}" if disk.is_private else lasting_path(disk)


def lasting_path(disk: Disk) -> str:
    """Return the path of a disk of a declared task, whose private disks are made again for each run."""
    return f"{DISKS}/{disk.disk}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a unit and its start depend on, besides the workload.

    Attributes:
        user: before a start the next one.
        systemd: its release.
        resolver: of the networks and the host, as `ip_versions` only if `needs_resolver` of `engine.plan`.
        total_memory: of the host, in bytes; this and what follows is checked by `engine.plan` only.
        security_modules: the enabled ones, if `security_modules` needs any.
        controllers: of cgroup v2, if `needs_controllers`.
        by_dhcp: a network of the NICs has a DHCP server.
    """

    image: StoredImage
    tender: Tender
    user: int
    systemd: int
    disks: Sequence[Disk] = ()
    groups: Sequence[str] = ()
    log_namespace: str = ""
    resolver: Resolver = UNSET
    total_memory: int = 0
    security_modules: Collection[str] = ()
    controllers: Collection[str] = ()
    by_dhcp: bool = False
    ip_versions: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Parts(Facts):
    """The inputs of a unit: the workload, and what preflight and reservation added to it."""

    workload: Workload
    reservation: Reservation

    @property
    def memory_mib(self) -> int:
        """Return the guest's memory, in MiB."""
        return guest_memory(self.workload.memory, self.image.manifest, self.archived)

    @property
    def archived(self) -> int:
        """Return the bytes of the archives: memory of the task's that its cgroup does not count."""
        return sum(disk.size for disk in self.disks if disk.backing is Backing.ARCHIVE)

    def device_options(self, disk_path: Callable[[Disk], str]) -> tuple[str, ...]:
        """Return the options of a tender that sees disks at `disk_path`; at `sandbox_path`, without blank or quote."""
        options = []
        for lease in self.reservation.leases:
            # Always with a MAC, else the tender uses one that the image may preset.
            options += [f"--net:{lease.nic}={lease.tap}", f"--net-mac:{lease.nic}={lease.mac}"]
        for disk in self.disks:
            options += [
                f"--block:{disk.disk}={disk_path(disk)}",
                f"--block-sector-size:{disk.disk}={disk.sector_size}",
            ]
        # Last: the tender would parse a device option that follows it twice.
        return (*options, f"--mem={self.memory_mib}")
