"""Whether an image is read, or refused, as any image must be."""

import time
import tracemalloc
from dataclasses import dataclass
from typing import BinaryIO, cast

from tests.hostile.claim import complaint
from tests.hostile.images import Hostile

from solo5_systemd.base.errors import ImageError
from solo5_systemd.image.elf import LOWEST_ADDRESS, MAX_SEGMENTS, read_manifest
from solo5_systemd.image.manifest import MAX_DEVICES, Manifest

MOST_BYTES = 64 << 10
"""Bytes that are read of any image: 512 program headers, a note's header twice for each of them, and two notes."""

MOST_READS = 2 * MAX_SEGMENTS + 5

TIME_LIMIT_MS = 50.0
MEMORY_LIMIT_MIB = 64.0
_AGAIN = 3

MACHINE = "x86_64"
"""That of the tests' guests."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How an image was taken.

    Attributes:
        manifest: read from it; None: it was refused.
        fault: what is wrong with manifest, sentence or effort; empty where nothing is.
    """

    manifest: Manifest | None = None
    sentence: str = ""
    fault: str = ""


def judge(image: Hostile) -> Verdict:
    """Have an image read; an exception that is not an ImageError passes."""
    file = image.file()
    try:
        manifest = read_manifest(cast("BinaryIO", file), image.size, machine=MACHINE)
    except ImageError as error:
        return Verdict(sentence=str(error), fault=complaint(error) or _effort(file.reads, file.bytes))
    return Verdict(manifest=manifest, fault=_unsound(manifest) or _effort(file.reads, file.bytes))


def expense(image: Hostile) -> str:
    """Return what an image takes too much of, processor time or memory; empty: of neither."""
    milliseconds = _milliseconds(image)
    if milliseconds > TIME_LIMIT_MS:  # the least of several times is the image's own, what is above it the machine's
        milliseconds = min(_milliseconds(image) for _ in range(_AGAIN))
    if milliseconds > TIME_LIMIT_MS:
        return f"{milliseconds:.1f} ms of processor time"
    tracemalloc.start()
    try:
        judge(image)
        mebibytes = tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()
    return f"{mebibytes:.1f} MiB of memory" if mebibytes > MEMORY_LIMIT_MIB else ""


def _milliseconds(image: Hostile) -> float:
    began = time.thread_time()
    judge(image)
    return 1e3 * (time.thread_time() - began)


def _effort(reads: int, size: int) -> str:
    return "" if reads <= MOST_READS and size <= MOST_BYTES else f"{reads} reads of {size} bytes"


def _unsound(manifest: Manifest) -> str:
    """Return what a caller could not rely on."""
    devices, names = manifest.devices, manifest.nics + manifest.disks
    if not LOWEST_ADDRESS < manifest.min_memory <= 1 << 66:
        return f"memory {manifest.min_memory:#x}"
    if len(devices) > MAX_DEVICES or len(set(devices)) != len(devices):
        return f"devices {devices}"
    if any(not name.isalnum() or not name.isascii() for name in names):
        return f"names of devices {devices}"
    return ""
