"""Parse a disk of a task: NAME=FILE, NAME=disk:DISK, NAME=files:PATH,... or NAME=credential:NAME, with options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from solo5_systemd.base.names import device_name, disk_name
from solo5_systemd.storage.archive import archive_disk, credential_name, member
from solo5_systemd.storage.io_limits import KEYS, IoLimits, io_limit
from solo5_systemd.storage.model import (
    MAX_SECTOR_SIZE,
    SECTOR_SIZE,
    ArchiveFormat,
    ArchiveRequest,
    DiskRequest,
    named_disk,
)
from solo5_systemd.task.property_types import SIZE
from solo5_systemd.task.quantities import integer, size, value_of

_NAMED_DISK = "disk:"
_IO_OPTIONS = ("read_bps=", "write_bps=", "read_iops=", "write_iops=")
_FILE_OPTIONS = ("sector-size=", "ephemeral", "ro", *_IO_OPTIONS)
_FILES = "files:"
_CREDENTIAL = "credential:"
_ARCHIVE_OPTIONS = ("sector-size=", "format=", "strip")
_NAMED_OPTIONS = (*_FILE_OPTIONS, "size=", "create")

DISK_SIZE = "disk size"
"""What an error of a disk's size names."""


def disk(text: str, place: Callable[[str], str] = str) -> DiskRequest:
    """Parse NAME=FILE or NAME=disk:DISK, with options behind it; FILE may contain commas and blanks.

    Args:
        place: returns the path in full that is written as a path of the host.
    """
    name, equals, rest = text.partition("=")
    if rest.startswith((_FILES, _CREDENTIAL)):
        return _archive(name, rest, place)
    is_named = rest.startswith(_NAMED_DISK)
    path, options = _disk_options(rest.removeprefix(_NAMED_DISK), _NAMED_OPTIONS if is_named else _FILE_OPTIONS)
    if not equals or not path:
        raise ValueError("has no file: expected NAME=FILE or NAME=disk:DISK, such as storage=/srv/disk.img")
    if is_named and "," in path:  # which no name of a disk has
        known = ", ".join(_NAMED_OPTIONS)
        raise ValueError(f"has the unknown option {path.rpartition(',')[2]!r}: expected some of {known}")
    device, private = device_name(name), "ephemeral" in options or "ro" in options
    if "create" in options and "size" not in options:
        raise ValueError(
            "has create without size=SIZE: expected the size of the disk that is created if there is none of its name"
        )
    create = value_of(size, options["size"], DISK_SIZE) if "size" in options else None
    if is_named:
        request = named_disk(device, disk_name(path), create=create, private=private)
    else:
        request = DiskRequest(disk=device, path=place(path), private=private)
    io = IoLimits(**{key: io_limit(key, options[key]) for key in KEYS if key in options})
    return replace(request, sector_size=_sector_size(options), io=io)


def disk_text(request: DiskRequest) -> str:
    """Return what `disk` parses as this request."""
    options = [f"sector-size={request.sector_size}"] if request.sector_size != SECTOR_SIZE else []
    if request.archive is not None:
        names = request.archive.credential or ",".join(path for _, path in request.archive.members)
        default = ArchiveFormat.RAW if request.archive.credential else ArchiveFormat.TAR
        options += [f"format={request.archive.format}"] if request.archive.format is not default else []
        options += ["strip"] if any(not name for name, _ in request.archive.members) else []
        what = f"{_CREDENTIAL if request.archive.credential else _FILES}{names}"
        return ",".join((f"{request.disk}={what}", *options))
    options += ["ephemeral"] if request.private else []
    options += [f"size={SIZE.format(request.create)}"] if request.create is not None else []
    options += str(request.io).split()
    what = request.path if request.name is None else f"{_NAMED_DISK}{request.name}"
    return ",".join((f"{request.disk}={what}", *options))


def _sector_size(options: Mapping[str, str]) -> int:
    parse = partial(integer, low=SECTOR_SIZE, high=MAX_SECTOR_SIZE)
    return value_of(parse, options.get("sector-size", str(SECTOR_SIZE)), "sector-size")


def _archive(name: str, rest: str, place: Callable[[str], str]) -> DiskRequest:
    """Parse files:PATH[,PATH...] and credential:CREDENTIAL, with options behind it."""
    text, options = _disk_options(rest, _ARCHIVE_OPTIONS)
    kind, _, value = text.partition(":")
    default = ArchiveFormat.TAR if f"{kind}:" == _FILES else ArchiveFormat.RAW
    written = options.get("format", default)
    if written not in tuple(ArchiveFormat):
        raise ValueError(f"has the unknown format {written!r}: expected tar or raw")
    paths = [path for path in value.split(",") if path] if default is ArchiveFormat.TAR else []
    return archive_disk(
        device_name(name),
        ArchiveRequest(
            members=tuple(member(path, place(path), strip="strip" in options) for path in paths),
            format=ArchiveFormat(written),
            credential=credential_name(value) if default is ArchiveFormat.RAW else "",
        ),
        sector_size=_sector_size(options),
    )


def _disk_options(text: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split options from the end of a text, since a file's name may contain commas."""
    values: dict[str, str] = {}
    spelled = {each.replace("_", "-"): each.removesuffix("=") for each in known}  # a job has sector_size
    while True:
        rest, comma, word = text.rpartition(",")
        key, equals, value = word.partition("=")
        key = spelled.get(f"{key}{equals}".replace("_", "-"), "")
        if not comma or not key:
            return text, values
        if key in values:
            raise ValueError(f"has {key} twice: expected it once")
        values[key], text = value, rest
