"""The two notes by which a Solo5 image describes itself, decoded from bytes."""

from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.names import DeviceName


class Target(StrEnum):
    """The tenders that run on Linux; an image names its own in the ABI note."""

    HVT = "hvt"
    SPT = "spt"


class DeviceKind(StrEnum):
    BLOCK_BASIC = "BLOCK_BASIC"
    NET_BASIC = "NET_BASIC"


@dataclass(frozen=True, kw_only=True)
class Device:
    name: DeviceName
    kind: DeviceKind


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an image needs: the tender it is for, that tender's ABI version, and its devices in order."""

    target: Target
    abi_version: int
    devices: tuple[Device, ...] = ()

    def names(self, kind: DeviceKind) -> tuple[DeviceName, ...]:
        return tuple(device.name for device in self.devices if device.kind is kind)
