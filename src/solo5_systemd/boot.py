"""This boot of the kernel, by the id that it gives itself (random(4))."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()
