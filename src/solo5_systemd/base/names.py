"""Names of tasks, devices and networks, and of the units that derive from a task's name.

A name is parsed once, or refused with InvalidRequestError; its type shows that it is valid. Units, lease record and log
fields derive from the task's name, so that stop, inspect and gc need no stored state.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NewType

from solo5_systemd.base.errors import InvalidRequestError

TaskName = NewType("TaskName", str)
"""1–128 of letters, digits, `_`, `.`, `-`, beginning with a letter or digit: unescaped in a unit name
(systemd.unit(5)), and as a file name never a path out of its directory. An instance of a template, which is declared,
has the name of the template, `@`, and the same characters: `web@1`."""

DeviceName = NewType("DeviceName", str)
"""A manifest device: 1–67 letters and digits, the alphabet of the tender's own option parser."""

DiskName = NewType("DiskName", str)
"""A named disk of the host: as a task name, with at most 64 characters."""

SnapshotName = NewType("SnapshotName", str)
"""A snapshot of a named disk, unique for the disk: as a disk name. `DISK@SNAPSHOT` names it on the host."""

NetworkName = NewType("NetworkName", str)
"""A network of the host: as a task name, with at most 32 characters."""


class Target(StrEnum):
    """The tenders for Linux; the ABI note of an image has its target."""

    HVT = "hvt"
    SPT = "spt"


class UnitKind(StrEnum):
    """The type of a task's unit, as the suffix of its name."""

    SERVICE = "service"
    SCOPE = "scope"


TASK_PREFIX = "solo5-task-"
OUTCOME = "solo5-outcome"
DECLARED_OUTCOME = "solo5-outcome-declared"
"""Before the `@` of outcome targets: of the one that refers to `solo5-task-NAME.service`, and to `NAME.service`."""
SLICE = "solo5.slice"
NETWORK_NAMESPACES = "/run/netns"

_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_NAME_MAX = 128
_INSTANCE = r"[A-Za-z0-9_.-]+"  # compiled at its first use, for startup time


def task_name(text: str) -> TaskName:
    """Parse a task's name, `web`, or `web@1` of an instance of a template.

    Raises:
        InvalidRequestError: it is malformed, or a template without its instance.
    """
    prefix, at, instance = text.partition("@")
    if not at or not is_task_name(prefix):
        return TaskName(_checked(text, "task name", _NAME_MAX))
    if not instance:
        raise InvalidRequestError(f"{text} is a template: expected the name of an instance, such as {prefix}@1.")
    if not is_task_name(text):
        raise InvalidRequestError(
            f"instance {instance!r} of {prefix}@ is not usable: expected letters, digits, '_', '.' and '-', no part "
            f"'.' or '..' between '-', and at most {_NAME_MAX} characters with the name."
        )
    return TaskName(text)


def _checked(text: str, what: str, most: int, marks: str = "_.-") -> str:
    """Return a name of letters, digits and these marks, the first no mark, or refuse it."""
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{marks}]{{0,{most - 1}}}", text, re.ASCII):
        *others, last = ("letters", "digits", *map(repr, marks))
        words = f"or {last}, the first a letter or digit" if marks else f"and {last}"
        raise InvalidRequestError(f"{what} {text!r} is not usable: expected 1 to {most} {', '.join(others)} {words}.")
    return text


def own_task_name(text: str) -> TaskName:
    """Parse the name of a task that is no instance of a template: only a declaration has these.

    Raises:
        InvalidRequestError: it is malformed, or that of an instance.
    """
    name = task_name(text)
    if is_instance(name):
        raise InvalidRequestError(
            f"task name {text!r} is that of an instance of a template: expected a name without '@'.",
            f"Declare it in /etc/solo5/{text}.unikernel, or start it if there is a template: systemctl start {text}",
        )
    return name


def is_task_name(text: str) -> bool:
    """Return whether a text is a task's name.

    Of an instance, `-` is a slash where a declaration has `%I`: `.` and `..` would be directories of a path.
    """
    prefix, at, instance = text.partition("@")
    if _TASK.fullmatch(prefix) is None or len(text) > _NAME_MAX:
        return False
    if not at:
        return True
    return bool(re.fullmatch(_INSTANCE, instance, re.ASCII)) and {".", ".."}.isdisjoint(instance.split("-"))


def is_instance(task: TaskName) -> bool:
    """Return whether a task is an instance of a template, or has the name of one: a declared task in any case."""
    return "@" in task


def template_of(task: TaskName) -> str:
    """Return the template of an instance: `web@` of `web@1`."""
    return f"{task.partition('@')[0]}@"


def host_name(task: TaskName) -> str:
    """Return the host name of a task's guest if it has no other: the task's name, `web-1` for `web@1`."""
    return task.replace("@", "-")


def device_name(text: str) -> DeviceName:
    """Parse the name of a manifest device (NIC or disk).

    Raises:
        InvalidRequestError: the tender's option parser would not accept it.
    """
    return DeviceName(_checked(text, "device name", 67, marks=""))


def disk_name(text: str) -> DiskName:
    """Parse the name of a named disk."""
    return DiskName(_checked(text, "disk name", 64))


def snapshot_name(text: str) -> SnapshotName:
    """Parse the name of a snapshot."""
    return SnapshotName(_checked(text, "snapshot name", 64))


def disk_or_snapshot(text: str) -> tuple[DiskName, SnapshotName | None]:
    """Parse the name of a named disk, or `DISK@SNAPSHOT`.

    Raises:
        InvalidRequestError: one of the names is malformed.
    """
    disk, at, snapshot = text.partition("@")
    return disk_name(disk), snapshot_name(snapshot) if at else None


SERVICE_NIC = DeviceName("service")
"""MirageOS' name for a unikernel's first NIC."""


def primary_nic(names: Sequence[DeviceName]) -> DeviceName | None:
    """Return the NIC that is meant where none is named: `service`, or else the first; None without any."""
    return SERVICE_NIC if SERVICE_NIC in names else next(iter(names), None)


def network_name(text: str) -> NetworkName:
    """Parse the name of a network."""
    return NetworkName(_checked(text, "network name", 32))


def log_namespace(text: str) -> str:
    """Parse the name of a journal namespace, which is part of unit and file names of systemd."""
    return _checked(text, "journal namespace", 64, marks="_-")


def task_namespace(task: TaskName) -> str:
    """Return the path of a task's own network namespace, which `ip netns` lists as `solo5-TASK`."""
    return f"{NETWORK_NAMESPACES}/solo5-{task}"


def journald_of(namespace: str) -> str:
    """Return the journald service of a journal namespace; empty: that of the host's journal."""
    return f"systemd-journald@{namespace}.service" if namespace else "systemd-journald.service"


MARK = "# Written by solo5-generator"
"""How each file of the generator begins, such as the unit file of a declared task."""

WAITING = "/run/solo5/waiting"
"""The directory of the FIFOs of socket units: one for each task that may wait without a process."""

DECLARED = "/run/solo5/declared"
"""The directory with a directory for each declared task."""

UNITS = "/run/systemd/units"
"""The directory in which PID 1 exports properties of active units."""

INVOCATION_LINK = "invocation:"
"""What precedes the name of a unit in the name of PID 1's link to its invocation ID, in `UNITS`."""


def task_service(task: TaskName) -> str:
    """Return the task's unit if it is a service."""
    return f"{TASK_PREFIX}{task}.service"


def task_scope(task: TaskName) -> str:
    """Return the task's unit if it is a scope."""
    return f"{TASK_PREFIX}{task}.scope"


def network_service(task: TaskName) -> str:
    """Return the task's network unit, a oneshot service that attaches before a start by systemd alone."""
    return f"solo5-network@{task}.service"


def prepare_service(task: TaskName) -> str:
    """Return the unit that prepares each start of a declared task."""
    return f"solo5-prepare@{task}.service"


def update_service(task: TaskName) -> str:
    """Return the unit that updates a declared task."""
    return f"solo5-update@{task}.service"


def user_of(task: TaskName) -> str:
    """Return the name of a declared task's user: constant, unlike its uid, and fit for User= (systemd.exec(5)).

    Of an instance, systemd makes it of `%i`.
    """
    prefix, at, instance = task.partition("@")
    return f"solo5-{hash_of(prefix, 12)}-{instance}" if at else f"solo5-{hash_of(task, 16)}"


def thaw_service(unit: str) -> str:
    """Return the unit that thaws the unit of a task if the process that has frozen it ends."""
    return f"solo5-thaw@{unit}.service"


def dhcp_service(network: NetworkName) -> str:
    """Return the unit of a network's DHCP server."""
    return f"solo5-dhcp@{network}.service"


def outcome_target(task: TaskName) -> str:
    """Return a transient task's outcome target, which refers to its service so that systemd keeps its outcome."""
    return f"{OUTCOME}@{task}.target"


def declared_outcome_target(task: TaskName) -> str:
    """Return the outcome target of a declared task."""
    return f"{DECLARED_OUTCOME}@{task}.target"


def awaited_target(task: TaskName) -> str:
    """Return the target before the preparation of an instance of a template, which is after what the task waits for.

    It is an instance of a template itself, so that `%i` in its file is that of the task; the file has the name of the
    target of `web@`.
    """
    return f"solo5-awaited-{task}.target"


def kind_of_unit(unit: str) -> UnitKind:
    """Return the type of a task's unit."""
    return UnitKind.SCOPE if unit.endswith(".scope") else UnitKind.SERVICE


def task_of_unit(unit: str) -> TaskName | None:
    """Return the task of a unit name, or None if it is not a task's unit."""
    stem, dot, suffix = unit.rpartition(".")
    if not dot or suffix not in ("service", "scope") or not stem.startswith(TASK_PREFIX):
        return None
    name = stem.removeprefix(TASK_PREFIX)
    return TaskName(name) if is_task_name(name) and "@" not in name else None  # an instance is always declared


def declared_task_of_unit(unit: str) -> TaskName | None:
    """Return the task of `NAME.service`, if that is the unit of a declared task; None for a name that no task has."""
    stem, dot, suffix = unit.rpartition(".")
    ours = dot and suffix == "service" and not stem.startswith(TASK_PREFIX) and is_task_name(stem)
    return TaskName(stem) if ours else None


def unit_path(unit: str) -> str:
    """Return a unit's D-Bus object path: all but letters and digits escaped as `_` and two hexadecimal digits.

    A first digit is escaped as well (sd_bus_path_encode(3)).
    """
    plain = (char.isascii() and char.isalnum() and not (i == 0 and char.isdigit()) for i, char in enumerate(unit))
    escaped = (char if each else f"_{ord(char):02x}" for char, each in zip(unit, plain, strict=True))
    return f"/org/freedesktop/systemd1/unit/{''.join(escaped)}"


def hash_of(name: str, digits: int) -> str:
    """Return the first hexadecimal digits of a name's SHA-256, for a shorter or safer name."""
    import hashlib  # imported here for startup time: few of those who import names need it

    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:digits]
