"""Parsers of option values, for argparse's `type=`. The syntax follows podman-run(1) where podman has the option.

Each raises InvalidRequestError with one sentence that has the option, the text and what was expected.
"""

import re
import signal as signals
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName, device_name, network_name, task_name
from solo5_systemd.unit.log_fields import label

if TYPE_CHECKING:
    from solo5_systemd.network.guest_limits import Limits
    from solo5_systemd.network.model import NicRequest
    from solo5_systemd.storage.io_limits import IoLimits
    from solo5_systemd.storage.model import DiskRequest
    from solo5_systemd.workload import Publish, StopSignal

# Types of values are imported where a value is parsed, for startup time: `--help` takes none.

T = TypeVar("T")

LARGEST_SIZE = (1 << 63) - 1
"""Bytes. systemd reads a property of 2^64-1 as "no limit"; half of that is beyond any machine."""

_SIZE = re.compile(r"([0-9]{1,19})([KMGT]?)(?:I?B)?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_JOURNAL_FIELD = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_NAMED_DISK = "disk:"
_IO_OPTIONS = ("read_bps=", "write_bps=", "read_iops=", "write_iops=")
_FILE_OPTIONS = ("sector-size=", "ephemeral", "ro", *_IO_OPTIONS)
_FILES = "files:"
_CREDENTIAL = "credential:"
_ARCHIVE_OPTIONS = ("sector-size=", "format=")
_NAMED_OPTIONS = (*_FILE_OPTIONS, "size=", "create")
_OUTER_COLON = re.compile(r":(?![^\[]*\])")
"""A colon that is not within the brackets around an IPv6 address."""

_EVERY_IPV4 = "0.0.0.0"  # noqa: S104 - parsed, never bound

KILL_SIGNALS = (signals.SIGINT, signals.SIGTERM, signals.SIGKILL)


def memory_size(text: str) -> int:
    """Return the bytes of `134217728`, `64M`, `64MiB` or `1g`; suffixes are powers of 1024.

    Raises:
        InvalidRequestError: malformed, zero, or more than LARGEST_SIZE.
    """
    return _size(text, "--memory")


def disk_size(text: str) -> int:
    """Return the bytes of a disk's size, as `memory_size`.

    Raises:
        InvalidRequestError: malformed, zero, or more than LARGEST_SIZE.
    """
    return _size(text, "disk size")


def _size(text: str, what: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _FACTORS[match[2].upper()] if match else 0
    if not 0 < size <= LARGEST_SIZE:
        raise InvalidRequestError(
            f"{what} {text!r} is not a size: expected a positive integer in bytes, or with a suffix, such as 64M or 1G."
        )
    return size


def cpus(text: str) -> float:
    """Return a CPU quota in processors, from `1.5`.

    Raises:
        InvalidRequestError: malformed, or less than the smallest quota of cgroup v2 (1 ms in 100 ms).
    """
    if not _DECIMAL.fullmatch(text) or float(text) < 0.01:
        raise InvalidRequestError(f"--cpus {text!r} is not a number of processors: expected 0.01 or more, such as 1.5.")
    return float(text)


def cpu_weight(text: str) -> int:
    """Return a CPUWeight= (systemd.resource-control(5)): 1 to 10000; systemd's default is 100.

    Raises:
        InvalidRequestError: malformed or out of range.
    """
    return _integer(text, "--cpu-weight", 1, 10_000)


def line_count(text: str) -> int:
    """Return the number of last lines to show.

    Raises:
        InvalidRequestError: malformed.
    """
    return _integer(text, "--tail", 0, 10**9)


def seconds(text: str) -> float:
    """Return a timeout in seconds.

    Raises:
        InvalidRequestError: malformed.
    """
    if not _DECIMAL.fullmatch(text):
        raise InvalidRequestError(f"--time {text!r} is not a timeout: expected seconds, such as 10 or 0.5.")
    return float(text)


def interval(text: str) -> float:
    """Return a sampling interval in seconds.

    Raises:
        InvalidRequestError: malformed, or outside 0.1–86400.
    """
    if not _DECIMAL.fullmatch(text) or not 0.1 <= float(text) <= 86400:
        raise InvalidRequestError(f"--interval {text!r} is not an interval: expected 0.1 to 86400 seconds, such as 5.")
    return float(text)


def stop_signal(text: str) -> "StopSignal":
    """Return the stop signal (KillSignal=) of a tender.

    Raises:
        InvalidRequestError: neither INT nor TERM.
    """
    from solo5_systemd.workload import StopSignal

    number = _signal(text)
    if number not in (signals.SIGINT, signals.SIGTERM):
        raise InvalidRequestError(f"--signal {text!r} is not a stop signal: expected INT or TERM.")
    return StopSignal(signals.Signals(number).name)


def kill_signal(text: str) -> int:
    """Return the number of a signal that `kill` may send.

    Raises:
        InvalidRequestError: not INT, TERM or KILL.
    """
    number = _signal(text)
    if number not in KILL_SIGNALS:
        raise InvalidRequestError(
            f"--signal {text!r} cannot be sent: expected INT, TERM or KILL, the signals that a tender handles; guests "
            "receive none.",
            "To pause and resume a guest: solo5ctl freeze, solo5ctl thaw.",
        )
    return number


def nic(text: str) -> "NicRequest":
    """Parse NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS].

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.network.model import NicRequest, ipv4_address, ipv6_address, mac_address

    name, equals, rest = text.partition("=")
    network, *options = rest.split(",")
    if not equals or not network:
        raise InvalidRequestError(
            f"--net {text!r} has no network: expected NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS], such as "
            "service=default."
        )
    values = _options(options, ("ip", "ip6", "mac"), f"--net {text!r}")
    return NicRequest(
        nic=device_name(name),
        network=network_name(network),
        ipv4=ipv4_address(values["ip"]) if "ip" in values else None,
        mac=mac_address(values["mac"]) if "mac" in values else None,
        ipv6=ipv6_address(values["ip6"]) if "ip6" in values else None,
    )


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def publish(text: str) -> "tuple[Publish, ...]":
    """Parse [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]; an IPv6 address is in brackets. Both ports may be ranges.

    Raises:
        InvalidRequestError: malformed, or ranges that are not equally long.
    """
    from solo5_systemd.network.model import Protocol, host_address, port_protocol
    from solo5_systemd.workload import Publish

    ports, slash, protocol = text.partition("/")
    *front, host_port, port = _OUTER_COLON.split(ports) if ":" in ports else ("", "", "", "")
    # Unambiguous: an IPv4 address always has dots, a NIC's name has letters and digits only.
    device = front.pop(0) if front and not set(front[0]) & set(".[") else None
    host_ip = front.pop(0) if front else None
    if front or not host_port or not port:
        raise InvalidRequestError(
            f"--publish {text!r} is not a published port: expected [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp], "
            "such as 8080:80 or 127.0.0.1:5353:53/udp."
        )
    address = host_address(_without_brackets(host_ip)) if host_ip is not None else None
    nic = device_name(device) if device is not None else None
    ours, theirs = _ports(host_port, text), _ports(port, text)
    if len(ours) != len(theirs):
        raise InvalidRequestError(
            f"--publish {text!r} leads from {len(ours)} ports to {len(theirs)}: expected as many of the guest as of "
            "the host, such as 8000-8010:80-90."
        )
    return tuple(
        Publish(
            nic=nic,
            host_ip=None if address is None or str(address) == _EVERY_IPV4 else address,
            host_port=each,
            port=other,
            protocol=port_protocol(protocol) if slash else Protocol.TCP,
        )
        for each, other in zip(ours, theirs, strict=True)
    )


def egress_entry(text: str) -> str:
    """Check an entry of an egress list, and return it.

    Raises:
        InvalidRequestError: malformed, or a name.
    """
    from solo5_systemd.settings.egress import egress

    egress([text])
    return text


def rate_entry(text: str) -> str:
    """Check a rate limit, and return it.

    Raises:
        InvalidRequestError: malformed, or out of range.
    """
    from solo5_systemd.settings.rate import rate

    rate([text])
    return text


def limits(egress_entries: "Sequence[str]", rates: "Sequence[str]") -> "Limits":
    """Return the limits of all NICs of a task.

    Raises:
        InvalidRequestError: too many entries, `none` beside others, or a rate that is given twice.
    """
    from solo5_systemd.network.guest_limits import Limits
    from solo5_systemd.settings.egress import egress
    from solo5_systemd.settings.rate import rate

    return Limits(egress=egress(egress_entries) if egress_entries else None, rate=rate(rates))


def dns_server(text: str) -> str:
    """Check the address of a name server, and return it.

    Raises:
        InvalidRequestError: malformed, IPv6, or no address of another machine.
    """
    from solo5_systemd.settings.resolver import name_server

    return str(name_server(text))


def dns_search(text: str) -> str:
    """Check a search domain, and return it.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.settings.resolver import search_domain

    return search_domain(text)


def namespace_path(text: str) -> str:
    """Return the path of a network namespace; a name is one of /run/netns, as for `ip netns`.

    Raises:
        InvalidRequestError: neither a name nor an absolute path.
    """
    if text in ("", ".", "..") or "\0" in text or ("/" in text and not text.startswith("/")):
        raise InvalidRequestError(
            f"network namespace {text!r} is neither a name nor an absolute path: expected one such as /run/netns/web."
        )
    return text if text.startswith("/") else f"/run/netns/{text}"


def guest_hostname(text: str) -> str:
    """Check a host name, and return it.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.settings.resolver import hostname

    return hostname(text)


def disk(text: str) -> "DiskRequest":
    """Parse NAME=FILE or NAME=disk:DISK, with options behind it; FILE may contain commas and blanks.

    Raises:
        InvalidRequestError: malformed.
    """
    from dataclasses import replace

    from solo5_systemd.names import disk_name
    from solo5_systemd.storage.model import DiskRequest, NewFile, named_disk

    name, equals, rest = text.partition("=")
    if rest.startswith((_FILES, _CREDENTIAL)):
        return _archive(name, rest, text)
    is_named = rest.startswith(_NAMED_DISK)
    path, options = _disk_options(rest.removeprefix(_NAMED_DISK), _NAMED_OPTIONS if is_named else _FILE_OPTIONS, text)
    if not equals or not path:
        raise InvalidRequestError(
            f"--block {text!r} has no file: expected NAME=FILE or NAME=disk:DISK, such as storage=/srv/disk.img."
        )
    if is_named and "," in path:  # which no name of a disk has
        known = ", ".join(_NAMED_OPTIONS)
        unknown = path.rpartition(",")[2]
        raise InvalidRequestError(f"--block {text!r} has the unknown option {unknown!r}: expected some of {known}.")
    sector = options.get("sector-size")
    sector_size = None if sector is None else _integer(sector, f"--block {text!r}: sector-size", 512, 32768)
    private = "ephemeral" in options or "ro" in options
    if not is_named:
        return DiskRequest(
            disk=device_name(name),
            path=path,
            sector_size=sector_size,
            private=private,
            io=_io_limits(options, text),
        )
    if ("create" in options) != ("size" in options):
        raise InvalidRequestError(
            f"--block {text!r} has one of create and size=SIZE: expected both, for a disk that is created if there is "
            "none of its name."
        )
    create = NewFile(size=disk_size(options["size"])) if "create" in options else None
    request = named_disk(device_name(name), disk_name(path), sector_size=sector_size, create=create, private=private)
    return replace(request, io=_io_limits(options, text))


def _io_limits(options: Mapping[str, str], whole: str) -> "IoLimits":
    from solo5_systemd.storage.io_limits import KEYS, IoLimits, io_limit

    try:
        return IoLimits(**{key: io_limit(key, options[key]) for key in KEYS if key in options})
    except InvalidRequestError as error:
        raise InvalidRequestError(f"--block {whole!r}: {error.sentence}") from error


def _archive(name: str, rest: str, whole: str) -> "DiskRequest":
    """Parse files:PATH[,PATH...] and credential:CREDENTIAL, with options behind it."""
    from solo5_systemd.storage.archive import archive_disk, credential_name, member
    from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest

    text, options = _disk_options(rest, _ARCHIVE_OPTIONS, whole)
    kind, _, value = text.partition(":")
    default = ArchiveFormat.TAR if f"{kind}:" == _FILES else ArchiveFormat.RAW
    written = options.get("format", default)
    if written not in tuple(ArchiveFormat):
        raise InvalidRequestError(f"--block {whole!r}: format {written!r} is unknown: expected tar or raw.")
    sector = options.get("sector-size")
    paths = [path for path in value.split(",") if path] if default is ArchiveFormat.TAR else []
    return archive_disk(
        device_name(name),
        ArchiveRequest(
            members=tuple(member(path, path) for path in paths),
            format=ArchiveFormat(written),
            credential=credential_name(value) if default is ArchiveFormat.RAW else "",
        ),
        sector_size=None if sector is None else _integer(sector, f"--block {whole!r}: sector-size", 512, 32768),
    )


def _disk_options(text: str, known: Sequence[str], whole: str) -> tuple[str, dict[str, str]]:
    """Split options from the end of a text, since a file's name may contain commas."""
    values: dict[str, str] = {}
    while True:
        rest, comma, word = text.rpartition(",")
        key, equals, value = word.partition("=")
        if not comma or f"{key}{equals}" not in known:
            return text, values
        if key in values:
            raise InvalidRequestError(f"--block {whole!r} has {key} twice: expected it once.")
        values[key], text = value, rest


def unit_property(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (unit/properties.py).

    Raises:
        InvalidRequestError: malformed, or not settable.
    """
    from solo5_systemd.unit.properties import parse_property

    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"--property {text!r} has no value: expected KEY=VALUE, such as TasksMax=32.")
    parse_property(key, value)
    return key, value


def log_field(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, KEY in the form of systemd.journal-fields(7).

    Raises:
        InvalidRequestError: malformed, or a SOLO5_ field.
    """
    key, equals, value = text.partition("=")
    if not equals or not _JOURNAL_FIELD.fullmatch(key) or key.startswith("SOLO5_") or not value.isprintable():
        raise InvalidRequestError(
            f"--log-field {text!r} is not a journal field: expected KEY=VALUE, KEY of at most 64 uppercase letters, "
            "digits and '_', starting with a letter and not with SOLO5_."
        )
    return key, value


def journal_label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, as in a Nomad job's `labels`.

    Raises:
        InvalidRequestError: malformed, or KEY is a field of journald, Nomad or solo5-systemd.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"--label {text!r} has no value: expected KEY=VALUE, such as TEAM=web.")
    try:
        return label(key, value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"--label {text!r}: {error.sentence}") from error


def unique(values: Iterable[T], key: Callable[[T], Hashable], what: str) -> tuple[T, ...]:
    """Return the values if their keys are unique.

    Args:
        values: in the order of the command line.
        key: returns the key of a value.
        what: the noun for the key in the error.

    Raises:
        InvalidRequestError: two values have the same key.
    """
    seen: dict[Hashable, T] = {}
    for value in values:
        if key(value) in seen:
            raise InvalidRequestError(f"{what} {key(value)} is given twice: expected once.")
        seen[key(value)] = value
    return tuple(seen.values())


def host_endpoint(port: "Publish") -> str:
    """Return `ADDRESS:PORT/PROTOCOL` of the host's side, which no other published port may have."""
    return f"{port.host_ip or '0.0.0.0'}:{port.host_port}/{port.protocol}"  # noqa: S104 - shown, never bound


def derived_name(image: str, suffix: str) -> TaskName:
    """Return the default task name: the file name's stem and a suffix that makes it unique."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")


def _options(words: Iterable[str], known: tuple[str, ...], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known or key in values:
            raise InvalidRequestError(
                f"{where} has {word!r} after the network: expected each of "
                f"{', '.join(f'{name}=ADDRESS' for name in known)} at most once."
            )
        values[key] = value
    return values


def _ports(text: str, whole: str) -> range:
    from solo5_systemd.network.port_conflicts import port_range

    try:
        return port_range(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"--publish {whole!r}: {error.sentence}", error.hint) from error


def _integer(text: str, what: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not low <= int(text) <= high:
        raise InvalidRequestError(f"{what} {text!r} is out of range: expected an integer from {low} to {high}.")
    return int(text)


def _signal(text: str) -> int:
    """Return the number of `TERM`, `SIGTERM`, `term` or `15`; 0 for an unknown signal."""
    upper = text.upper().removeprefix("SIG")
    by_name = {signal.name.removeprefix("SIG"): signal.value for signal in signals.Signals}
    numbers = {str(number) for number in by_name.values()}
    return int(upper) if upper in numbers else by_name.get(upper, 0)
