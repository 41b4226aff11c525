"""From a unikernel of albatross to its declaration; what has no key is a note."""

import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solo5_systemd.declared.exported import INSTALL
from solo5_systemd.declared.writer import Line, Written, write_declaration
from solo5_systemd.errors import InvalidRequestError, Solo5Error
from solo5_systemd.image.manifest import DeviceKind, ImageFacts
from solo5_systemd.names import DeviceName, TaskName, device_name, disk_name, network_name, task_name
from solo5_systemd.network.model import MacAddress, NicRequest, mac_address
from solo5_systemd.options.disks import disk as parse_disk
from solo5_systemd.sanitize import bounded
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.unit.tender import TENDER_OVERHEAD, overhead
from solo5_systemd.workload import MIB, Workload

IMAGE_MAX = 256 * MIB
"""Bytes of an image without its compression: more than any that a tender starts from a dump."""

MEMORY_MAX = 1 << 20
"""MiB; of a guest. A number beyond is none that a host of albatross had."""

CPU_MAX = 8191
"""The highest number of a processor that systemd accepts."""

_LABEL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9.-]{0,62}", re.ASCII)
_ZVOL = re.compile(r"/dev/zvol(/[A-Za-z0-9_:-][A-Za-z0-9_.:-]*)+", re.ASCII)
_QUOTED_MAX = 80
_NEVER_RESTARTED = (1, 60, 61, 62, 63, 64)
_BLOCKS = "/var/lib/albatross/block"


@dataclass(frozen=True, kw_only=True)
class HostDevice:
    """A NIC or disk of a unikernel.

    Attributes:
        name: in the manifest of the image.
        host: the bridge or disk of the host; None: of the same name.
        sector_size: of a disk, in bytes; None: not set.
        mac: of a NIC; None: computed by albatross.
    """

    name: str
    host: str | None = None
    sector_size: int | None = None
    mac: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Unikernel:
    """A unikernel of a dump, as albatross has it: none of the fields is checked.

    Attributes:
        name: labels, separated by colons; one without a path begins with a colon.
        is_solo5: False: a virtual machine of bhyve.
        compressed: whether `image` is a zlib stream.
        image: the ELF file.
        startup: when it is started, in ascending order; None: not set.
        add_name: whether its first argument is its name.
        restart: the exit codes after which it is started again, empty for all; None: none.
        cpus: numbers of processors.
        memory: MiB of the guest.
        blocks: its disks.
        bridges: its NICs.
        arguments: of the guest.
    """

    name: str
    is_solo5: bool = True
    compressed: bool = False
    image: bytes
    startup: int | None = None
    add_name: bool = False
    restart: Sequence[int] | None = None
    cpus: Sequence[int] = ()
    memory: int
    blocks: Sequence[HostDevice] = ()
    bridges: Sequence[HostDevice] = ()
    arguments: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A dump.

    Attributes:
        version: the first release of albatross that wrote its format.
        unikernels: in the order of the dump.
        policies: the names of policies.
    """

    version: str
    unikernels: Sequence[Unikernel]
    policies: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A declaration.

    Attributes:
        name: of the task.
        text: of the declaration.
        notes: what is not as it was, and what is to be done before it starts.
    """

    name: TaskName
    text: str
    notes: Sequence[str]


def converted_name(unikernel: Unikernel) -> TaskName:
    """Return the name of the task: the labels of the unikernel's name, joined by a hyphen.

    Raises:
        InvalidRequestError: the name is none of albatross', or cannot be that of a task.
    """
    labels = _labels(unikernel)
    try:
        return task_name("-".join(labels))
    except InvalidRequestError as error:
        raise _unusable(unikernel, error.sentence) from error


def image_content(unikernel: Unikernel) -> bytes:
    """Return the image without its compression.

    Raises:
        InvalidRequestError: it cannot be decompressed, or is too large.
    """
    if not unikernel.compressed:
        content = unikernel.image
    else:
        decompressor = zlib.decompressobj()
        try:
            content = decompressor.decompress(unikernel.image, IMAGE_MAX + 1)
        except zlib.error as error:
            raise _unusable(unikernel, f"its image cannot be decompressed: {error}: expected a zlib stream.") from error
        if len(content) <= IMAGE_MAX and not decompressor.eof:
            raise _unusable(unikernel, "its image cannot be decompressed: expected a complete zlib stream.")
    if len(content) > IMAGE_MAX:
        raise _unusable(unikernel, f"its image is too large: expected {IMAGE_MAX // MIB} MiB or less.")
    return content


def converted(unikernel: Unikernel, image: str, facts: ImageFacts | None) -> Converted:
    """Return the declaration of a unikernel of Solo5.

    Args:
        unikernel: of the dump.
        image: the path that its image will have.
        facts: of the image; None: it cannot be read.

    Raises:
        InvalidRequestError: a value is none of albatross', or cannot be written.
    """
    notes = [f"Unikernel {':'.join(_labels(unikernel))} of albatross, written by solo5ctl convert."]
    try:
        workload = Workload(
            name=converted_name(unikernel),
            image=image,
            arguments=tuple(_arguments(unikernel, notes)),
            memory=_memory(unikernel, facts, notes),
            nics=tuple(_nics(unikernel, notes)),
            disks=tuple(_disks(unikernel, notes)),
            properties=tuple(_properties(unikernel)),
        )
        service = tuple(_restart(unikernel, notes))
        _note_the_rest(unikernel, facts, notes)
        text = write_declaration(Written(workload=workload, service=service, install=INSTALL, comments=notes))
    except Solo5Error as error:
        raise _unusable(unikernel, error.sentence) from error
    return Converted(name=workload.name, text=text, notes=notes[1:])


def _unusable(unikernel: Unikernel, sentence: str) -> InvalidRequestError:
    prefix = f"unikernel {bounded(unikernel.name, _QUOTED_MAX)!r}: "
    return InvalidRequestError(sentence if sentence.startswith(prefix) else prefix + sentence)


def _labels(unikernel: Unikernel) -> Sequence[str]:
    labels = unikernel.name.removeprefix(":").split(":")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise _unusable(unikernel, "its name is none of albatross: expected labels of letters, digits, '-' and '.'.")
    return labels


def _arguments(unikernel: Unikernel, notes: list[str]) -> Iterator[str]:
    if unikernel.add_name:
        yield f"--name={_labels(unikernel)[-1]}"
        notes.append(
            "albatross gives the guest its name as the first argument. If it exits with 64, it has no argument --name: "
            "remove that from Argument=."
        )
    for each in unikernel.arguments:
        yield each.replace("{", "{{").replace("}", "}}")
    if unikernel.bridges:
        notes.append("Addresses in Argument= are as they were. {mirage} has those that the task is given.")


def _memory(unikernel: Unikernel, facts: ImageFacts | None, notes: list[str]) -> int:
    guest = unikernel.memory
    if not 0 < guest <= MEMORY_MAX:
        raise _unusable(unikernel, f"its memory is none of a guest: expected 1 to {MEMORY_MAX} MiB.")
    extra = overhead(facts.manifest, guest) if facts else TENDER_OVERHEAD
    notes.append(f"Memory= is for guest ({guest} MiB) and tender ({extra} MiB).")
    return (guest + extra) * MIB


def _nics(unikernel: Unikernel, notes: list[str]) -> Iterator[NicRequest]:
    for each in unikernel.bridges:
        nic, network = device_name(each.name), network_name(each.host or each.name)
        yield NicRequest(nic=nic, network=network, mac=_mac(unikernel, each, nic, notes))
        notes.append(
            f'NIC {nic} was on bridge {network}: add [network.{network}] with join = "{network}" below /etc/solo5, or '
            f"write Network={nic}=default."
        )


def _mac(unikernel: Unikernel, device: HostDevice, nic: DeviceName, notes: list[str]) -> MacAddress:
    """Return the MAC of a NIC; without one, that which albatross derives from the names of NIC and unikernel."""
    octets = device.mac
    if octets is None:
        *path, label = _labels(unikernel)
        text = f"{device.name}{':'.join(path)}:{label}"
        octets = b"\x00\x80\x41" + hashlib.md5(text.encode(), usedforsecurity=False).digest()[:3]
        notes.append(f"The MAC of NIC {nic} is that of albatross, from 1.5 on.")
    if len(octets) != 6:
        raise _unusable(unikernel, f"the MAC of NIC {nic} has {len(octets)} bytes: expected 6.")
    return mac_address(octets.hex(":"))


def _disks(unikernel: Unikernel, notes: list[str]) -> Iterator[DiskRequest]:
    *path, _ = _labels(unikernel)
    for each in unikernel.blocks:
        name, host = device_name(each.name), each.host or each.name
        if _ZVOL.fullmatch(host):
            where = host
        elif _LABEL.fullmatch(host):
            disk = disk_name("-".join((*path, host)))
            where = f"disk:{disk}"
            file = f"{_BLOCKS}/{':'.join(path)}:{host}"
            notes.append(f"Disk {name}, once albatross does not run: solo5ctl disk import {disk} {file}")
        else:
            raise _unusable(
                unikernel,
                f"the block device of disk {name} is {bounded(host, _QUOTED_MAX)!r}: expected a name of letters, "
                "digits, '-' and '.', or a volume below /dev/zvol.",
            )
        sector = "" if each.sector_size is None else f",sector-size={_small(unikernel, each.sector_size)}"
        yield parse_disk(f"{name}={where}{sector}", "Block=")


def _properties(unikernel: Unikernel) -> Iterator[Line]:
    cpus = sorted(set(unikernel.cpus))
    if cpus:
        if cpus[0] < 0 or cpus[-1] > CPU_MAX:
            raise _unusable(unikernel, f"its processors are none: expected numbers from 0 to {CPU_MAX}.")
        yield "AllowedCPUs", " ".join(map(str, cpus))


def _restart(unikernel: Unikernel, notes: list[str]) -> Iterator[Line]:
    if unikernel.restart is None:
        return
    codes = sorted({_small(unikernel, code) for code in unikernel.restart} - set(_NEVER_RESTARTED))
    if codes:
        yield "RestartForceExitStatus", " ".join(map(str, codes))
        return
    yield "Restart", "always"
    yield "RestartPreventExitStatus", " ".join(map(str, _NEVER_RESTARTED))
    notes.append("albatross does not start a guest again that a signal has ended; Restart=always does.")


def _small(unikernel: Unikernel, number: int) -> int:
    if not 0 <= number <= 65536:
        raise _unusable(
            unikernel, "a sector size, exit code or place in the order is out of range: expected 0 to 65536."
        )
    return number


def _note_the_rest(unikernel: Unikernel, facts: ImageFacts | None, notes: list[str]) -> None:
    if unikernel.startup is not None:
        order = _small(unikernel, unikernel.startup)
        notes.append(f"It was started at {order} in albatross' order: write After= with the units before it.")
    if facts is None:
        notes.append("The image cannot be read as one of Solo5 for this host: solo5ctl image shows the reason.")
        return
    declared = {device.name for device in facts.manifest.devices}
    given = {each.name for each in (*unikernel.bridges, *unikernel.blocks)}
    if declared != given:
        kinds = {kind: facts.manifest.names(kind) for kind in DeviceKind}
        listed = ", ".join(name for names in kinds.values() for name in names) or "none"
        notes.append(f"The devices of the image are others ({listed}): it will not start.")
