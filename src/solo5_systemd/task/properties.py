"""Unit properties: the table of all that are set, and the arguments of StartTransientUnit() from and to text."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task import property_types as types
from solo5_systemd.task.property_types import PropertyType


@dataclass(frozen=True, kw_only=True)
class PropertyInfo:
    """A property.

    Attributes:
        directive: its name in unit files (systemd.directives(7)).
        name: its name on D-Bus.
        settable: whether an operator may set it; the engine alone sets the others.
        controller: the cgroup v2 controller that enforces it, or empty.
        security_module: without this module, systemd silently ignores the property; or empty.
        is_executed: it is of systemd.exec(5). A scope lacks it, since PID 1 does not execute its processes.
    """

    directive: str
    name: str
    type: PropertyType
    settable: bool = False
    controller: str = ""
    security_module: str = ""
    is_executed: bool = False


def _of(directives: str, kind: PropertyType, name: str = "", **more: Any) -> Iterator[PropertyInfo]:
    """Yield properties of one type. Without `name`, a time is `…Sec` in unit files and `…USec` on D-Bus."""
    for each in directives.split():
        on_bus = f"{each.removesuffix('Sec')}USec" if kind is types.TIME else each
        yield PropertyInfo(directive=each, name=name or on_bus, type=kind, **more)


def _rows() -> Iterator[PropertyInfo]:
    # Of systemd.unit(5), systemd.service(5), systemd.scope(5) and systemd.kill(5)
    yield from _of("Description NotifyAccess Type", types.TEXT)
    yield from _of("After Requires Wants", types.WORDS)
    yield from _of("IgnoreOnIsolate", types.BOOLEAN)
    yield from _of("ExecStart", types.COMMANDS)
    yield from _of("ExecStart", types.COMMANDS_WITH_FLAGS, "ExecStartEx")
    yield from _of("PIDs", types.PIDS)
    yield from _of("TimeoutStartSec", types.TIME)
    yield from _of("RuntimeMaxSec TimeoutStopSec", types.TIME, settable=True)
    yield from _of("KillSignal", types.STOP_SIGNAL, settable=True)

    # Of systemd.resource-control(5)
    yield from _of("Slice", types.TASK_SLICE, settable=True)
    yield from _of("MemoryMax", types.SIZE, controller="memory")
    yield from _of("MemoryHigh MemoryLow MemoryMin MemorySwapMax", types.SIZE, settable=True, controller="memory")
    yield from _of("CPUQuota", types.PROCESSOR_TIME, "CPUQuotaPerSecUSec", settable=True, controller="cpu")
    yield from _of("CPUQuotaPeriodSec", types.TIME, settable=True, controller="cpu")
    yield from _of("CPUWeight", types.WEIGHT, settable=True, controller="cpu")
    yield from _of("AllowedCPUs AllowedMemoryNodes", types.CPUS, settable=True, controller="cpuset")
    yield from _of("TasksMax", types.COUNT, settable=True, controller="pids")
    yield from _of("IOWeight", types.WEIGHT, settable=True, controller="io")
    yield from _of("IOReadBandwidthMax IOWriteBandwidthMax", types.BANDWIDTH, settable=True, controller="io")
    yield from _of("IOReadIOPSMax IOWriteIOPSMax", types.BANDWIDTH, settable=True, controller="io")
    yield from _of("CPUAccounting IOAccounting", types.BOOLEAN, settable=True)
    yield from _of("DeviceAllow", types.DEVICES)
    yield from _of("DevicePolicy", types.TEXT)
    yield from _of("IPAddressDeny", types.ADDRESSES)

    yield from (replace(row, is_executed=True) for row in _executed_rows())


def _executed_rows() -> Iterator[PropertyInfo]:
    # Limits, logging, console
    yield from _of("LimitAS LimitCORE LimitDATA LimitFSIZE LimitMEMLOCK LimitSTACK", types.SIZE, settable=True)
    yield from _of("LimitNOFILE LimitNPROC", types.COUNT, settable=True)
    yield from _of("Nice", types.number("i", -20, 19), settable=True)
    yield from _of("OOMScoreAdjust", types.number("i", -1000, 1000), settable=True)
    yield from _of("LogRateLimitBurst", types.number("u", 0, (1 << 32) - 1), settable=True)
    yield from _of("LogRateLimitIntervalSec", types.TIME, settable=True)
    yield from _of("LogExtraFields", types.ASSIGNMENTS)
    yield from _of("LogNamespace StandardInputFile StandardOutput SyslogIdentifier", types.TEXT)
    yield from _of("SyslogFacility", types.INTEGER)
    yield from _of("IgnoreSIGPIPE SyslogLevelPrefix", types.BOOLEAN)

    # The files of the sandbox
    yield from _of("ProcSubset ProtectHome ProtectProc ProtectSystem RootDirectory", types.TEXT)
    yield from _of("BindLogSockets MountAPIVFS PrivateDevices", types.BOOLEAN)
    yield from _of("BindPaths BindReadOnlyPaths", types.BINDS)
    yield from _of("ExecPaths InaccessiblePaths NoExecPaths", types.WORDS)
    yield from _of("TemporaryFileSystem", types.MOUNTS)
    yield from _of("PrivateTmp", types.TEXT, "PrivateTmpEx")

    # Users, capabilities and system calls of the sandbox
    yield from _of("KeyringMode User", types.TEXT)
    yield from _of("SupplementaryGroups SystemCallArchitectures", types.WORDS)
    yield from _of("CapabilityBoundingSet", types.CAPABILITIES)
    yield from _of("CoredumpFilter", types.MASK)
    yield from _of("UMask", types.MODE)
    yield from _of("MemoryDenyWriteExecute", types.ONLY_YES, settable=True)
    yield from _of("SystemCallFilter", types.SYSTEM_CALLS, settable=True)
    yield from _of("RestrictAddressFamilies", types.FILTER)
    yield from _of("RestrictNamespaces", types.NAMESPACES)
    yield from _of("NetworkNamespacePath", types.TEXT)
    yield from _of("NoNewPrivileges PrivateIPC PrivateNetwork PrivateUsers RemoveIPC", types.BOOLEAN)
    yield from _of("ProtectClock ProtectControlGroups ProtectHostname ProtectKernelLogs", types.BOOLEAN)
    yield from _of("ProtectKernelModules ProtectKernelTunables RestrictRealtime RestrictSUIDSGID", types.BOOLEAN)
    yield from _of("ProtectControlGroups", types.TEXT, "ProtectControlGroupsEx")
    yield from _of("AppArmorProfile", types.APPARMOR_PROFILE, settable=True, security_module="apparmor")
    yield from _of("SELinuxContext", types.SELINUX_CONTEXT, settable=True, security_module="selinux")


PROPERTIES: Mapping[str, PropertyInfo] = {row.name: row for row in _rows()}
"""By name on D-Bus."""

SETTABLE: Mapping[str, PropertyInfo] = {row.directive: row for row in PROPERTIES.values() if row.settable}
"""Those that an operator may set, by directive."""

LIMITS: Mapping[str, str] = {row.directive: row.controller for row in PROPERTIES.values() if row.controller}
"""The cgroup v2 controller of each limit, by directive."""

DISK_LIMITS: Mapping[str, str] = {
    "read_bps": "IOReadBandwidthMax",
    "write_bps": "IOWriteBandwidthMax",
    "read_iops": "IOReadIOPSMax",
    "write_iops": "IOWriteIOPSMax",
}
"""The property of each I/O limit of a disk (`storage.io_limits.KEYS`)."""


@dataclass(frozen=True)
class Property:
    """One property: D-Bus name, D-Bus signature, and the value in plain Python types."""

    name: str
    signature: str
    value: object


@dataclass(frozen=True, kw_only=True)
class TransientUnit:
    """The unit of one StartTransientUnit() call.

    Attributes:
        properties: in the order in which they are sent.
        marks: fields of a scope, stored in an extended attribute of its cgroup: a scope has no LogExtraFields=.
    """

    name: str
    properties: tuple[Property, ...]
    marks: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> object:
        """Return the value of a property, or None."""
        return next((p.value for p in self.properties if p.name == name), None)


def unit_property(name: str, value: object) -> Property:
    """Return a property by its name on D-Bus, with a value in plain Python types, as its signature demands."""
    return Property(name, PROPERTIES[name].type.signature, value)


def parse_property(assignment_key: str, text: str) -> Property:
    """Parse KEY=VALUE as an operator writes it.

    Raises:
        InvalidRequestError: a task may not set this property, or the value is malformed.
    """
    known = SETTABLE.get(assignment_key)
    if known is None:
        raise InvalidRequestError(
            f"unit property {assignment_key!r} cannot be set: expected one of {', '.join(sorted(SETTABLE))}."
        )
    try:
        return unit_property(known.name, known.type.parse(text))
    except ValueError as error:
        raise InvalidRequestError(f"unit property {assignment_key}={text}: expected {error}.") from error


def directive(entry: Property) -> str:
    """Return a property as a line of a unit file, or as one for each device: `TimeoutStopSec=10s`.

    As few lines as there can be: at a boot, each takes PID 1 5 µs.
    """
    value: Any = entry.value
    known = PROPERTIES[entry.name]
    values = [[each] for each in value] if known.type in (types.DEVICES, types.BANDWIDTH) else [value]
    return "\n".join(f"{known.directive}={known.type.format(each)}" for each in values)


def scope_lacks(assignment_key: str) -> bool:
    """Return whether a property may be set for a service only."""
    known = SETTABLE.get(assignment_key)
    return known is not None and known.is_executed


def security_modules(assignments: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the properties that need a security module, each with the module, except optional ones (prefix `-`)."""
    return {
        key: SETTABLE[key].security_module
        for key, text in assignments
        if key in SETTABLE and SETTABLE[key].security_module and text[:1] != "-"
    }


FLAG_SINCE = 254
"""The release of systemd whose flag `no-env-expand` prevents the expansion of `$NAME` in ExecStart=.

It survives a daemon-reload since that release only: before, it is serialized under a name that systemd does not parse,
and the unit becomes "bad-setting". `$$` survives before that release only: since, it is doubled at each reload.
"""


def exec_start(line: Iterable[str], program: str, release: int) -> Property:
    """Return ExecStart= of a command line with each `$` as it is, in the form that survives a daemon-reload.

    Args:
        line: the arguments of the program, from its own name on.
        program: the program to execute; empty: the one that the line begins with.
        release: of systemd, such as 257.
    """
    words = list(line)
    path = program or words[0]
    if release >= FLAG_SINCE and any("$" in word for word in words):
        return unit_property("ExecStartEx", [(path, words, ["no-env-expand"])])
    return unit_property("ExecStart", [(path, [word.replace("$", "$$") for word in words], False)])


def release_of(version: str) -> int:
    """Return the release in PID 1's version: 257 of `257.7-1~deb13u1`, 258 of `v258~rc1`; 0 without a number."""
    match = re.search("[0-9]+", version)
    return int(match[0]) if match else 0


CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""The controllers that every task needs. `io` is left out: only a unit property of the task can require it."""


def missing_controllers(controllers: Collection[str] | None) -> tuple[str, ...]:
    """Return the `CONTROLLERS` that the unified hierarchy lacks; None: there is no unified hierarchy."""
    return tuple(name for name in CONTROLLERS if name not in (controllers or ()))
