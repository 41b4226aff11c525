"""Specifiers of systemd.unit(5) in values of [Unikernel]: `%i`, `%n`, `%H`.

Those of [Unit], [Service] and [Install] are passed on to systemd. These are expanded when the declaration is read, so
that addresses and disks are those of the instance. Specifiers of a user, of credentials and of the image of the host
have no meaning for a guest, and are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SPECIFIER = re.compile("%(.?)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class HostNames:
    """Facts of the host that a specifier can name; empty: not known.

    Attributes:
        hostname: as of gethostname(2).
        machine_id: 32 hexadecimal digits, of /etc/machine-id.
        boot_id: 32 hexadecimal digits.
        kernel: release of the kernel, as `uname -r`.
        architecture: in systemd's words, such as `x86-64`.
    """

    hostname: str = ""
    machine_id: str = ""
    boot_id: str = ""
    kernel: str = ""
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class Specified:
    """The values of specifiers, by letter.

    Attributes:
        in_unit: in values that are part of the unit file.
        at_start: in those of keys with `at_start`.
    """

    in_unit: Mapping[str, str]
    at_start: Mapping[str, str]


def specifiers(name: str, host: HostNames) -> Mapping[str, str]:
    """Return the value of each specifier, by its letter.

    Args:
        name: of the declaration: `web`, or `web@1` for an instance of a template.
    """
    prefix, _, instance = name.partition("@")
    last = prefix.rpartition("-")[2]
    return {
        "%": "%",
        "n": f"{name}.service",
        "N": name,
        "p": prefix,
        "P": _unescaped(prefix),
        "j": last,
        "J": _unescaped(last),
        "i": instance,
        "I": _unescaped(instance),
        "f": f"/{_unescaped(instance or prefix)}",
        "H": host.hostname,
        "l": host.hostname.partition(".")[0],
        "m": host.machine_id,
        "b": host.boot_id,
        "v": host.kernel,
        "a": host.architecture,
        "C": "/var/cache",
        "E": "/etc",
        "L": "/var/log",
        "S": "/var/lib",
        "t": "/run",
        "T": "/tmp",  # noqa: S108 - as systemd's
        "V": "/var/tmp",  # noqa: S108 - as systemd's
    }


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its specifiers replaced.

    Raises:
        ValueError: an unknown specifier, or one without a value; the message is the end of a sentence.
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values or not match[1]:
            known = " ".join(f"%{letter}" for letter in values)
            raise ValueError(f"has the unknown specifier {match[0]!r}: expected one of {known}; %% is a percent sign")
        if not values[match[1]]:
            of = "an instance of a template" if match[1] in "iI" else "a host with that fact"
            raise ValueError(f"has the specifier {match[0]}, which is empty here: expected {of}")
        return values[match[1]]

    return _SPECIFIER.sub(replace, text)


def _unescaped(text: str) -> str:
    """Return a name with systemd's escape of a slash undone; names of declarations have no other escapes."""
    return text.replace("-", "/")
