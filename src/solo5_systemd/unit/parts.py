"""The inputs of a unit."""

from collections.abc import Sequence
from dataclasses import dataclass

from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.resolver import UNSET, Resolver
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.guest_memory import guest_memory
from solo5_systemd.unit.tender import Tender


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The inputs of a unit: the workload, and what preflight and reservation added to it.

    Attributes:
        resolver: name servers and search domains, if an argument has them.
    """

    workload: Workload
    image: StoredImage
    tender: Tender
    reservation: Reservation
    user: int
    systemd: int
    disks: Sequence[Disk] = ()
    groups: Sequence[str] = ()
    log_namespace: str = ""
    resolver: Resolver = UNSET

    @property
    def memory_mib(self) -> int:
        """Return the guest's memory, in MiB."""
        return guest_memory(self.workload.memory, self.image.facts, self.archived)

    @property
    def archived(self) -> int:
        """Return the bytes of the archives: memory of the task's that its cgroup does not count."""
        return sum(disk.size for disk in self.disks if disk.backing is Backing.ARCHIVE)
