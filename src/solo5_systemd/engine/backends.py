"""The backends of the engine. Every method raises only errors of `solo5_systemd.base.errors`.

tests/support/fakes has the implementations of the tests.
"""

from typing import Protocol

from solo5_systemd.bus.lease_reader import NetworkReader
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.bus.unit_reader import UnitReader
from solo5_systemd.cgroup.cgroupfs import CgroupFs
from solo5_systemd.host.resolvers import HostResolvers
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.store import ImageStore
from solo5_systemd.journal.console import Journal
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.disk_space import DiskSpace
from solo5_systemd.users.allocation import Users


class QueryBackends(Protocol):
    """The backends of reads; each may be created at its first use."""

    @property
    def networks(self) -> NetworkReader: ...
    @property
    def units(self) -> UnitReader: ...
    @property
    def console(self) -> Journal: ...
    @property
    def usages(self) -> CgroupFs: ...
    @property
    def disk_space(self) -> DiskSpace: ...


class Backends(QueryBackends, Protocol):
    """All backends; each may be created at its first use."""

    @property
    def images(self) -> ImageStore: ...
    @property
    def tenders(self) -> TenderPath: ...
    @property
    def disks(self) -> ImageFiles: ...
    @property
    def users(self) -> Users: ...
    @property
    def networks(self) -> Networkd: ...
    @property
    def units(self) -> Manager: ...
    @property
    def relay(self) -> Relay: ...
    @property
    def resolvers(self) -> HostResolvers: ...
