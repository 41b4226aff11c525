"""Which file backs which BLOCK_BASIC device, and the rules a tender has for it."""

from dataclasses import dataclass

from solo5_systemd.names import DeviceName


@dataclass(frozen=True, kw_only=True)
class DiskRequest:
    """One manifest BLOCK_BASIC device and the file or block device behind it; sector size in bytes, None: 512."""

    disk: DeviceName
    path: str
    sector_size: int | None = None
