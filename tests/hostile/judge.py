"""Whether an image is read, or refused, as any image must be."""

from dataclasses import dataclass
from typing import BinaryIO, cast

from tests.hostile.claim import complaint
from tests.hostile.images import Hostile

from solo5_systemd.base.errors import ImageError
from solo5_systemd.image.elf import LOWEST_ADDRESS, MAX_SEGMENTS, PAGE, read_manifest
from solo5_systemd.image.manifest import MAX_DEVICES, ImageFacts

MOST_BYTES = 64 << 10
"""Bytes that are read of any image: 512 program headers, a note's header twice for each of them, and two notes."""

MOST_READS = 2 * MAX_SEGMENTS + 5

MACHINE = "x86_64"
"""That of the tests' guests."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How an image was taken.

    Attributes:
        facts: read from it; None: it was refused.
        sentence: of the refusal.
        fault: what is wrong with facts, sentence or effort; empty where nothing is.
    """

    facts: ImageFacts | None = None
    sentence: str = ""
    fault: str = ""


def judge(image: Hostile) -> Verdict:
    """Have an image read; an exception that is not an ImageError passes."""
    file = image.file()
    try:
        facts = read_manifest(cast("BinaryIO", file), image.size, machine=MACHINE)
    except ImageError as error:
        return Verdict(sentence=str(error), fault=complaint(error) or _effort(file.reads, file.bytes))
    return Verdict(facts=facts, fault=_unsound(facts) or _effort(file.reads, file.bytes))


def _effort(reads: int, size: int) -> str:
    return "" if reads <= MOST_READS and size <= MOST_BYTES else f"{reads} reads of {size} bytes"


def _unsound(facts: ImageFacts) -> str:
    """Return what a caller could not rely on."""
    devices = facts.manifest.devices
    if not LOWEST_ADDRESS <= facts.entry < 1 << 64:
        return f"entry point {facts.entry:#x}"
    if facts.load_end < LOWEST_ADDRESS or facts.load_end % PAGE:
        return f"end of loaded segments {facts.load_end:#x}"
    if len(devices) > MAX_DEVICES or len(set(devices)) != len(devices):
        return f"devices {devices}"
    if any(not device.name.isalnum() or not device.name.isascii() for device in devices):
        return f"names of devices {devices}"
    return ""
