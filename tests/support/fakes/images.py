"""Images that were taken and read, of any manifest that a test needs."""

from solo5_systemd.base.names import DeviceName, Target, TaskName
from solo5_systemd.engine.plan import Plan
from solo5_systemd.image.manifest import GUEST_HEAP, Manifest, StoredImage
from solo5_systemd.network.model import Request, Reservation
from solo5_systemd.storage.model import Disk, GivenDisk
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.tender import Tender

SHA256 = "5" * 64


def manifest(target: Target = Target.HVT, *, nics: str = "", disks: str = "", end: int = 1 << 20) -> Manifest:
    names = {"nics": nics, "disks": disks}
    devices = {kind: tuple(map(DeviceName, text.split())) for kind, text in names.items()}
    return Manifest(target=target, **devices, min_memory=end + GUEST_HEAP)


def stored(target: Target = Target.HVT, *, nics: str = "", disks: str = "", end: int = 1 << 20) -> StoredImage:
    return StoredImage(
        path=f"/var/lib/solo5/images/{SHA256}",
        sha256=SHA256,
        size=4096,
        manifest=manifest(target, nics=nics, disks=disks, end=end),
    )


def planned(nics: str = "", disks: str = "") -> Plan:
    image = stored(nics=nics, disks=disks)
    workload = Workload(name=TaskName("web"), image="/srv/web.hvt", memory=32 * MIB)
    tender = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2)
    reservation = Reservation(task=workload.name)
    return Plan(
        workload=workload,
        image=image,
        tender=tender,
        reservation=reservation,
        user=61200,
        systemd=257,
        request=Request(),
    )


def disk(name: str = "storage", *, path: str = "/srv/disk.img", device: tuple[int, int] | None = None) -> Disk:
    return Disk(
        disk=DeviceName(name), path=path, sector_size=512, device=device, identity=(1, 2), given=GivenDisk(path, 1, 2)
    )
