"""Parsers of option values, for argparse's `type=`: those of `options/`, and those that only a verb has.

Each raises InvalidRequestError with one sentence that has the option, the text and what was expected.
"""

import re
import signal as signals
from typing import TYPE_CHECKING

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName, task_name

if TYPE_CHECKING:
    from solo5_systemd.network.model import NicRequest
    from solo5_systemd.storage.model import DiskRequest
    from solo5_systemd.workload import Publish, StopSignal

# Types of values are imported where a value is parsed, for startup time: `--help` takes none.

_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)

KILL_SIGNALS = (signals.SIGINT, signals.SIGTERM, signals.SIGKILL)


def memory_size(text: str) -> int:
    """Return the bytes of `134217728`, `64M`, `64MiB` or `1g`; suffixes are powers of 1024.

    Raises:
        InvalidRequestError: malformed, zero, or more than LARGEST_SIZE.
    """
    from solo5_systemd.options.quantities import size as parse

    return parse(text, "--memory")


def disk_size(text: str) -> int:
    """Return the bytes of a disk's size, as `memory_size`.

    Raises:
        InvalidRequestError: malformed, zero, or more than LARGEST_SIZE.
    """
    from solo5_systemd.options.quantities import size as parse

    return parse(text, "disk size")


def cpus(text: str) -> float:
    """Return a CPU quota in processors, from `1.5`.

    Raises:
        InvalidRequestError: malformed, or less than the smallest quota of cgroup v2 (1 ms in 100 ms).
    """
    from solo5_systemd.options.quantities import cpus as parse

    return parse(text, "--cpus")


def cpu_weight(text: str) -> int:
    """Return a CPUWeight= (systemd.resource-control(5)): 1 to 10000; systemd's default is 100.

    Raises:
        InvalidRequestError: malformed or out of range.
    """
    from solo5_systemd.options.quantities import cpu_weight as parse

    return parse(text, "--cpu-weight")


def line_count(text: str) -> int:
    """Return the number of last lines to show.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.options.quantities import integer

    return integer(text, "--tail", 0, 10**9)


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
    """Parse NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE].

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.options.networks import nic as parse

    return parse(text, "--net")


def publish(text: str) -> "tuple[Publish, ...]":
    """Parse [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]; an IPv6 address is in brackets. Both ports may be ranges.

    Raises:
        InvalidRequestError: malformed, or ranges that are not equally long.
    """
    from solo5_systemd.options.networks import publish as parse

    return parse(text, "--publish")


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
    from solo5_systemd.options.networks import namespace_path as parse

    return parse(text)


def guest_hostname(text: str) -> str:
    """Check a host name, and return it.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.settings.resolver import hostname

    return hostname(text)


def extra_host(text: str) -> str:
    """Check a name with an address, and return both.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.settings.hosts import host

    return str(host(text))


def disk(text: str) -> "DiskRequest":
    """Parse NAME=FILE or NAME=disk:DISK, with options behind it; FILE may contain commas and blanks.

    Raises:
        InvalidRequestError: malformed.
    """
    from solo5_systemd.options.disks import disk as parse

    return parse(text, "--block")


def unit_property(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (unit/properties.py).

    Raises:
        InvalidRequestError: malformed, or not settable.
    """
    from solo5_systemd.options.assignments import unit_property as parse

    return parse(text, "--property")


def log_field(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, KEY in the form of systemd.journal-fields(7).

    Raises:
        InvalidRequestError: malformed, or a SOLO5_ field.
    """
    from solo5_systemd.options.assignments import log_field as parse

    return parse(text, "--log-field")


def journal_label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, as in a Nomad job's `labels`.

    Raises:
        InvalidRequestError: malformed, or KEY is a field of journald, Nomad or solo5-systemd.
    """
    from solo5_systemd.options.assignments import journal_label as parse

    return parse(text, "--label")


def declaration_name(text: str) -> TaskName:
    """Parse the name of a declaration, `web` or `web@1`.

    Raises:
        InvalidRequestError: malformed, or a template without its instance.
    """
    from solo5_systemd.declared.declaration import declared_task

    return declared_task(text)


def derived_name(image: str, suffix: str) -> TaskName:
    """Return the default task name: the file name's stem and a suffix that makes it unique."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")


def _signal(text: str) -> int:
    """Return the number of `TERM`, `SIGTERM`, `term` or `15`; 0 for an unknown signal."""
    upper = text.upper().removeprefix("SIG")
    by_name = {signal.name.removeprefix("SIG"): signal.value for signal in signals.Signals}
    numbers = {str(number) for number in by_name.values()}
    return int(upper) if upper in numbers else by_name.get(upper, 0)
