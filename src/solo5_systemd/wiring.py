"""The one module that picks implementations."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from solo5_systemd.backends import Backends
from solo5_systemd.block.imagefile import ImageFiles
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.networkd import Networkd
from solo5_systemd.cgroup.cgroupfs import CgroupFs
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.store import ImageStore
from solo5_systemd.journal.journalctl import Journal
from solo5_systemd.runtime import Runtime
from solo5_systemd.settings import Settings


@asynccontextmanager
async def connect(settings: Settings) -> AsyncGenerator[Runtime, None]:
    """The engine on this machine.

    Raises:
        HostError: the system bus cannot be reached.
    """
    async with system_bus() as connection:
        yield Runtime(
            Backends(
                images=ImageStore(),
                tenders=TenderPath(settings.tender_paths),
                disks=ImageFiles(),
                networks=Networkd(connection),
                units=Manager(connection),
                console=Journal(),
                usages=CgroupFs(),
            )
        )
