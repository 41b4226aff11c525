"""What people type, as values.

The forms are those of podman-run(1) where podman has one. Each function is a type for argparse: it takes the text
behind its option and answers with a value, or with one sentence that names option, text and what was expected.
"""

import re
import signal as signals
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from solo5_systemd.block.model import DiskRequest
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName, device_name, network_name, task_name
from solo5_systemd.network.model import (
    NicRequest,
    Protocol,
    ipv4_address,
    mac_address,
    port_number,
    port_protocol,
)
from solo5_systemd.unit.log_fields import label
from solo5_systemd.unit.properties import parse_property
from solo5_systemd.workload import Publish, StopSignal

T = TypeVar("T")

LARGEST_SIZE = (1 << 63) - 1
"""Bytes. systemd reads a property of 2^64-1 as "no limit"; half of that is beyond any machine."""

_SIZE = re.compile(r"([0-9]{1,19})([KMGT]?)(?:I?B)?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_JOURNAL_FIELD = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_SECTOR_SIZE = ",sector-size="

KILL_SIGNALS = (signals.SIGINT, signals.SIGTERM, signals.SIGKILL)


def memory_size(text: str) -> int:
    """Bytes, from `134217728`, `64M`, `64MiB` or `1g`; suffixes are to the base of 1024.

    Raises:
        InvalidRequestError: malformed, zero, or beyond any machine.
    """
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _FACTORS[match[2].upper()] if match else 0
    if not 0 < size <= LARGEST_SIZE:
        raise InvalidRequestError(
            f"--memory {text!r} is not a size: expected a whole number of bytes above zero, or one with a suffix, "
            "such as 64M or 1G."
        )
    return size


def cpus(text: str) -> float:
    """Processors' worth of time, from `1.5`.

    Raises:
        InvalidRequestError: malformed, or less than the kernel can hold a task to (1 ms in 100).
    """
    if not _DECIMAL.fullmatch(text) or float(text) < 0.01:
        raise InvalidRequestError(f"--cpus {text!r} is not a number of processors: expected 0.01 or more, such as 1.5.")
    return float(text)


def cpu_weight(text: str) -> int:
    """A CPUWeight= of systemd: 1 to 10000, of which 100 is the usual.

    Raises:
        InvalidRequestError: malformed or outside.
    """
    return _whole(text, "--cpu-weight", 1, 10_000)


def line_count(text: str) -> int:
    """How many lines of the console's end.

    Raises:
        InvalidRequestError: malformed.
    """
    return _whole(text, "--tail", 0, 10**9)


def seconds(text: str) -> float:
    """A time to wait.

    Raises:
        InvalidRequestError: malformed.
    """
    if not _DECIMAL.fullmatch(text):
        raise InvalidRequestError(f"--time {text!r} is not a time: expected seconds, such as 10 or 0.5.")
    return float(text)


def interval(text: str) -> float:
    """Seconds between two looks.

    Raises:
        InvalidRequestError: no number, or outside 0.1–86400.
    """
    if not _DECIMAL.fullmatch(text) or not 0.1 <= float(text) <= 86400:
        raise InvalidRequestError(f"--interval {text!r} is not a time: expected seconds from 0.1 on, such as 5.")
    return float(text)


def stop_signal(text: str) -> StopSignal:
    """The signal that asks a tender to end.

    Raises:
        InvalidRequestError: neither INT nor TERM.
    """
    number = _signal(text)
    if number not in (signals.SIGINT, signals.SIGTERM):
        raise InvalidRequestError(f"--signal {text!r} does not ask a tender to end: expected INT or TERM.")
    return StopSignal(signals.Signals(number).name)


def kill_signal(text: str) -> int:
    """The number of a signal that `kill` may send.

    Raises:
        InvalidRequestError: any but INT, TERM and KILL.
    """
    number = _signal(text)
    if number not in KILL_SIGNALS:
        raise InvalidRequestError(
            f"--signal {text!r} cannot be sent: expected INT, TERM or KILL, since a guest sees no signals, and any "
            "other kills its tender without a word or does nothing.",
            "To stop and continue a guest: solo5ctl freeze, solo5ctl thaw.",
        )
    return number


def nic(text: str) -> NicRequest:
    """NIC=NETWORK[,ip=ADDRESS][,mac=ADDRESS].

    Raises:
        InvalidRequestError: malformed.
    """
    name, equals, rest = text.partition("=")
    network, *options = rest.split(",")
    if not equals or not network:
        raise InvalidRequestError(
            f"--net {text!r} does not name a network: expected NIC=NETWORK[,ip=ADDRESS][,mac=ADDRESS], "
            "such as service=default."
        )
    values = _options(options, ("ip", "mac"), f"--net {text!r}")
    return NicRequest(
        nic=device_name(name),
        network=network_name(network),
        ipv4=ipv4_address(values["ip"]) if "ip" in values else None,
        mac=mac_address(values["mac"]) if "mac" in values else None,
    )


def publish(text: str) -> Publish:
    """[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp].

    A NIC's name holds only letters and digits and an IPv4 address always dots, so that one is never taken for the
    other.

    Raises:
        InvalidRequestError: malformed.
    """
    ports, slash, protocol = text.partition("/")
    *front, host_port, port = ports.split(":") if ":" in ports else ("", "", "", "")
    device = front.pop(0) if front and "." not in front[0] else None
    host_ip = front.pop(0) if front else None
    if front or not host_port or not port:
        raise InvalidRequestError(
            f"--publish {text!r} is not a published port: expected [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp], "
            "such as 8080:80 or 127.0.0.1:5353:53/udp."
        )
    address = ipv4_address(host_ip) if host_ip is not None else None
    return Publish(
        nic=device_name(device) if device is not None else None,
        host_ip=None if address is None or address.is_unspecified else address,
        host_port=_port(host_port, text),
        port=_port(port, text),
        protocol=port_protocol(protocol) if slash else Protocol.TCP,
    )


def disk(text: str) -> DiskRequest:
    """NAME=FILE[,sector-size=N]; FILE may hold commas and blanks.

    Raises:
        InvalidRequestError: malformed.
    """
    name, equals, rest = text.partition("=")
    path, comma, size = rest.rpartition(_SECTOR_SIZE) if _SECTOR_SIZE in rest else (rest, "", "")
    if not equals or not path:
        raise InvalidRequestError(
            f"--block {text!r} does not name a file: expected NAME=FILE[,sector-size=N], such as storage=/srv/disk.img."
        )
    return DiskRequest(
        disk=device_name(name),
        path=path,
        sector_size=_whole(size, f"--block {text!r}: sector-size", 512, 32768) if comma else None,
    )


def unit_property(text: str) -> tuple[str, str]:
    """KEY=VALUE, checked to be a property that a task may set.

    Raises:
        InvalidRequestError: malformed, or not for a task to set.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"--property {text!r} has no value: expected KEY=VALUE, such as TasksMax=32.")
    parse_property(key, value)
    return key, value


def log_field(text: str) -> tuple[str, str]:
    """KEY=VALUE, KEY in the form of systemd.journal-fields(7).

    Raises:
        InvalidRequestError: malformed, or one of the fields that we set.
    """
    key, equals, value = text.partition("=")
    if not equals or not _JOURNAL_FIELD.fullmatch(key) or key.startswith("SOLO5_") or not value.isprintable():
        raise InvalidRequestError(
            f"--log-field {text!r} is not a journal field: expected KEY=VALUE, KEY of at most 64 capital letters, "
            "digits and '_', beginning with a letter and not with SOLO5_."
        )
    return key, value


def journal_label(text: str) -> tuple[str, str]:
    """KEY=VALUE, as a job's `labels`.

    Raises:
        InvalidRequestError: malformed, or a name that the journal, Nomad or Solo5 uses.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"--label {text!r} has no value: expected KEY=VALUE, such as TEAM=web.")
    try:
        return label(key, value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"--label {text!r}: {error.sentence}") from error


def unlike(values: Iterable[T], key: Callable[[T], Hashable], what: str) -> tuple[T, ...]:
    """The values, no two of which have the same key.

    Args:
        values: in the order in which they were typed.
        key: what must differ.
        what: what the key is called, for the error.

    Raises:
        InvalidRequestError: two have.
    """
    seen: dict[Hashable, T] = {}
    for value in values:
        if key(value) in seen:
            raise InvalidRequestError(f"{what} {key(value)} is given twice: expected it once.")
        seen[key(value)] = value
    return tuple(seen.values())


def listening(port: Publish) -> str:
    """The end that two published ports cannot share."""
    return f"{port.host_ip or '0.0.0.0'}:{port.host_port}/{port.protocol}"  # noqa: S104 - shown, never bound


def derived_name(image: str, suffix: str) -> TaskName:
    """A task name for an image without one: its file's stem, and a suffix that tells it from the others."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")


def _options(words: Iterable[str], known: tuple[str, ...], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known or key in values:
            raise InvalidRequestError(
                f"{where} has {word!r} behind the name: expected each of "
                f"{', '.join(f'{name}=ADDRESS' for name in known)} at most once."
            )
        values[key] = value
    return values


def _port(text: str, whole: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise InvalidRequestError(f"--publish {whole!r}: port {text!r} does not exist: expected 1 to 65535.")
    return port_number(int(text))


def _whole(text: str, what: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not low <= int(text) <= high:
        raise InvalidRequestError(f"{what} {text!r} is wrong: expected a whole number from {low} to {high}.")
    return int(text)


def _signal(text: str) -> int:
    """A signal's number, from `TERM`, `SIGTERM`, `term` or `15`; zero for what is none."""
    upper = text.upper().removeprefix("SIG")
    by_name = {signal.name.removeprefix("SIG"): signal.value for signal in signals.Signals}
    numbers = {str(number) for number in by_name.values()}
    return int(upper) if upper in numbers else by_name.get(upper, 0)
