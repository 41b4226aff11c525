"""The ABI note and the manifest note of an image, decoded from bytes (Solo5's `elf_abi.h` and `mft_abi.h`).

The checks are those of the tenders, and stricter where a tender accepts what cannot work or what sets the tender's own
fields: odd note sizes, reserved words in use, names that no option can spell, device settings of the tender.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import ImageError, InvalidRequestError
from solo5_systemd.base.names import DeviceName, Target, device_name
from solo5_systemd.settings.records import document, integer, record, text


class DeviceKind(StrEnum):
    """The type of a manifest entry."""

    BLOCK_BASIC = "BLOCK_BASIC"
    NET_BASIC = "NET_BASIC"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device that a manifest declares; as text, `disk NAME` or `NIC NAME`."""

    name: DeviceName
    kind: DeviceKind

    def __str__(self) -> str:
        return f"{_KIND_NAMES[self.kind]} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The requirements of an image: tender, devices in the order of their handles, and memory.

    Attributes:
        min_memory: guest memory (bytes) below which the image cannot start; 0: unknown.
    """

    target: Target
    devices: tuple[Device, ...] = ()
    min_memory: Annotated[int, integer(0, 1 << 66)] = 0  # the sum of a segment's address and size, of 64 bits each

    def names(self, kind: DeviceKind) -> tuple[DeviceName, ...]:
        """Return the names of the devices of one kind, in order."""
        return tuple(device.name for device in self.devices if device.kind is kind)


def is_sha256(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hexadecimal digits, the name of a stored image."""
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)


def _sha256(text: str) -> str:
    if not is_sha256(text):
        raise InvalidRequestError(f"{text!r} is not a SHA-256.")
    return text


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """A checked and immutable image in the image store.

    Without its path, as JSON, it is the memo of a source file: unchanged, that is neither read nor parsed again.
    """

    path: str = ""
    sha256: Annotated[str, text(_sha256)]
    size: int
    manifest: Manifest

    def encode(self) -> bytes:
        """Return the memo."""
        return json.dumps(document(replace(self, path=""))).encode()

    @classmethod
    def decode(cls, content: bytes, directory: str) -> "StoredImage":
        """Parse a memo of an image in a directory.

        Raises:
            InvalidRequestError: damaged, or written by an incompatible version.
        """
        found = record(StoredImage, Fields(json_document(content, "memo"), "memo"))
        return replace(found, path=f"{directory}/{found.sha256}")


ABI_VERSION = 2
"""Of hvt and spt of Solo5 0.8 and later. A tender runs exactly one version."""

MAX_DEVICES = 63
GUEST_HEAP = 512 << 10
"""Bytes; Solo5's bindings abort a guest with less free memory at its start."""

_TARGETS = {1: Target.HVT, 2: Target.SPT, 3: "virtio", 4: "muen", 5: "genode", 6: "xen"}
_ABI = struct.Struct("<4I")
_HEADER = struct.Struct("<4xII")  # the descriptor begins with four bytes of padding
_ENTRY = struct.Struct("<68sI16s8s?7x")
_RESERVED_FIRST = 1 << 30
_KINDS = {1: DeviceKind.BLOCK_BASIC, 2: DeviceKind.NET_BASIC}
MANIFEST_DESC_MAX = _HEADER.size + (MAX_DEVICES + 1) * _ENTRY.size

_KIND_NAMES = {DeviceKind.BLOCK_BASIC: "disk", DeviceKind.NET_BASIC: "NIC"}


def decode_abi(desc: bytes) -> Target:
    """Decode the ABI note: the image's target.

    Raises:
        ImageError: damaged, another target, or an ABI version that tenders no longer support.
    """
    if len(desc) != _ABI.size:
        raise ImageError(f"its ABI note holds {len(desc)} bytes: expected {_ABI.size}.")
    number, version, *reserved = _ABI.unpack(desc)
    if any(reserved):
        raise ImageError(f"its ABI note uses reserved words ({reserved[0]:#x}, {reserved[1]:#x}): expected zero.")
    name = _TARGETS.get(number, f"number {number}")
    if name not in tuple(Target):
        raise ImageError(f"it is built for Solo5 target {name}: expected hvt or spt.")
    if version != ABI_VERSION:
        raise ImageError(
            f"it is built for {name} ABI version {version}: expected {ABI_VERSION}, that of Solo5 0.8 and later."
        )
    return Target(name)


def decode_manifest(desc: bytes) -> tuple[Device, ...]:
    """Decode the manifest note: the devices in the order of their handles, without the reserved first entry.

    Raises:
        ImageError: damaged, or a device that no option of a tender can attach.
    """
    if len(desc) < _HEADER.size:
        raise ImageError(f"its manifest note holds {len(desc)} bytes: expected at least {_HEADER.size}.")
    version, count = _HEADER.unpack_from(desc)
    if version != 1:
        raise ImageError(f"its manifest has version {version}: expected 1.")
    if not 1 <= count <= MAX_DEVICES + 1:
        raise ImageError(f"its manifest counts {count} entries: expected 1 to {MAX_DEVICES + 1}.")
    size = _HEADER.size + count * _ENTRY.size
    if len(desc) != size:
        raise ImageError(f"its manifest note holds {len(desc)} bytes: expected {size} for {count} entries.")
    first, *entries = [_entry(i, it) for i, it in enumerate(_ENTRY.iter_unpack(desc[_HEADER.size :]))]
    if first != (b"", _RESERVED_FIRST):
        raise ImageError("its manifest does not begin with the reserved entry that Solo5 puts first.")
    devices = tuple(_device(index, *entry) for index, entry in enumerate(entries, 1))
    for device, count in Counter(devices).items():
        if count > 1:
            raise ImageError(f"its manifest declares {device} {count} times: expected once.")
    return devices


def match(manifest: Manifest, nics: Iterable[DeviceName], disks: Iterable[DeviceName]) -> None:
    """Check that the offered devices are exactly the declared ones, as tenders require.

    Raises:
        InvalidRequestError: they differ; the sentence names each missing and each undeclared device.
    """
    offered = [Device(name=nic, kind=DeviceKind.NET_BASIC) for nic in nics]
    offered += [Device(name=disk, kind=DeviceKind.BLOCK_BASIC) for disk in disks]
    differences = [f"{device} is offered {count} times" for device, count in Counter(offered).items() if count > 1]
    differences += [f"{device} is not offered" for device in manifest.devices if device not in offered]
    differences += [f"{device} is not declared" for device in dict.fromkeys(offered) if device not in manifest.devices]
    if not differences:
        return
    hint = f"The manifest declares {', '.join(map(str, manifest.devices)) or 'no devices'}."
    lacking = (device for device in manifest.devices if device not in offered)
    if (disk := next((device for device in lacking if device.kind is DeviceKind.BLOCK_BASIC), None)) is not None:
        hint += (
            f" A disk is given by --block {disk.name}=PATH of solo5ctl run, by Block={disk.name}=PATH in [Unikernel], "
            f'or by block "{disk.name}" {{ source = "PATH" }} in the job\'s config.'
        )
    sentence = f"the devices offered are not those of the image's manifest: {'; '.join(differences)}."
    raise InvalidRequestError(sentence, hint)


def _entry(index: int, fields: tuple[bytes, int, bytes, bytes, bool]) -> tuple[bytes, int]:
    """Return name and type of an entry, after the checks that are common to all entries."""
    name, kind, settings, handle, attached = fields
    if name[-1]:
        raise ImageError(f"the name of its manifest entry {index} does not end: expected at most 67 characters.")
    if attached or any(settings) or any(handle):
        raise ImageError(f"its manifest entry {index} sets fields that are the tender's to set: expected zero.")
    return name[: name.index(0)], kind


def _device(index: int, name: bytes, kind: int) -> Device:
    if kind not in _KINDS:
        raise ImageError(f"its manifest entry {index} has the unknown type {kind:#x}: expected 1 (block) or 2 (net).")
    try:
        return Device(name=device_name(name.decode("latin-1")), kind=_KINDS[kind])
    except InvalidRequestError as error:
        raise ImageError(f"its manifest entry {index} cannot be attached: {error.sentence}") from error
