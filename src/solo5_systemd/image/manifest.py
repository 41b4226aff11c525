"""The ABI note and the manifest note of an image, decoded from bytes (Solo5's `elf_abi.h` and `mft_abi.h`).

The checks are those of the tenders, and stricter where a tender accepts what cannot work or what sets the tender's own
fields: odd note sizes, reserved words in use, names that no option can spell, device settings of the tender.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import ImageError, InvalidRequestError
from solo5_systemd.base.names import DeviceName, Target, device_name
from solo5_systemd.settings.records import document, integer, record, text


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The requirements of an image: tender, devices, each kind in the order of their handles, and memory.

    Attributes:
        nics: the devices of type NET_BASIC.
        disks: those of type BLOCK_BASIC.
        min_memory: guest memory (bytes) below which the image cannot start; 0: unknown.
    """

    target: Target
    nics: tuple[DeviceName, ...]
    disks: tuple[DeviceName, ...]
    min_memory: Annotated[int, integer(0, 1 << 66)] = 0  # the sum of a segment's address and size, of 64 bits each

    @property
    def devices(self) -> Sequence[str]:
        """The devices as texts, such as `NIC service`."""
        return _texts(self.nics, self.disks)


def _texts(nics: Iterable[DeviceName], disks: Iterable[DeviceName]) -> Sequence[str]:
    return [*(f"NIC {nic}" for nic in nics), *(f"disk {disk}" for disk in disks)]


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
        """Parse a memo of an image in a directory; raises InvalidRequestError if it is damaged."""
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
_BLOCK, _NET = 1, 2
MANIFEST_DESC_MAX = _HEADER.size + (MAX_DEVICES + 1) * _ENTRY.size


def decode_abi(desc: bytes) -> Target:
    """Decode the ABI note: the image's target; raises ImageError."""
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


def decode_manifest(desc: bytes) -> tuple[Sequence[DeviceName], Sequence[DeviceName]]:
    """Decode the manifest note: the NICs, and the disks; raises ImageError."""
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
    found: Mapping[int, list[DeviceName]] = {_NET: [], _BLOCK: []}
    for index, (name, kind) in enumerate(entries, 1):
        if kind not in found:
            raise ImageError(
                f"its manifest entry {index} has the unknown type {kind:#x}: expected 1 (block) or 2 (net)."
            )
        try:
            found[kind].append(device_name(name.decode("latin-1")))
        except InvalidRequestError as error:
            raise ImageError(f"its manifest entry {index} cannot be attached: {error.sentence}") from error
    nics, disks = found[_NET], found[_BLOCK]
    for device, count in Counter(_texts(nics, disks)).items():
        if count > 1:
            raise ImageError(f"its manifest declares {device} {count} times: expected once.")
    return nics, disks


def match(manifest: Manifest, nics: Iterable[DeviceName], disks: Iterable[DeviceName]) -> None:
    """Raise InvalidRequestError, with each difference, unless the offered devices are exactly the declared ones."""
    offered, declared = _texts(nics, disks), manifest.devices
    differences = [f"{device} is offered {count} times" for device, count in Counter(offered).items() if count > 1]
    differences += [f"{device} is not offered" for device in declared if device not in offered]
    differences += [f"{device} is not declared" for device in dict.fromkeys(offered) if device not in declared]
    if not differences:
        return
    hint = f"The manifest declares {', '.join(declared) or 'no devices'}."
    if disk := next((disk for disk in manifest.disks if f"disk {disk}" not in offered), ""):
        hint += (
            f" A disk is given by --block {disk}=PATH of solo5ctl run, by Block={disk}=PATH in [Unikernel], "
            f'or by block "{disk}" {{ source = "PATH" }} in the job\'s config.'
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
