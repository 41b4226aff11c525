"""The table of all unit properties that the engine or an operator sets, each described once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from solo5_systemd.unit import property_types as types
from solo5_systemd.unit.property_types import PropertyType


@dataclass(frozen=True, kw_only=True)
class PropertyInfo:
    """A property.

    Attributes:
        directive: its name in unit files (systemd.directives(7)).
        name: its name on D-Bus.
        type: of its value.
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


def _of(
    directives: str,
    kind: PropertyType,
    name: str = "",
    *,
    settable: bool = False,
    controller: str = "",
    security_module: str = "",
) -> Iterator[PropertyInfo]:
    """Yield properties of one type. Without `name`, a time is `…Sec` in unit files and `…USec` on D-Bus."""
    for each in directives.split():
        on_bus = f"{each.removesuffix('Sec')}USec" if kind is types.TIME else each
        yield PropertyInfo(
            directive=each,
            name=name or on_bus,
            type=kind,
            settable=settable,
            controller=controller,
            security_module=security_module,
        )


def _rows() -> Iterator[PropertyInfo]:
    # Of systemd.unit(5), systemd.service(5), systemd.scope(5) and systemd.kill(5)
    yield from _of("Description NotifyAccess Type", types.TEXT)
    yield from _of("After Requires Wants", types.WORDS)
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
    yield from _of("IPAddressAllow IPAddressDeny", types.ADDRESSES)

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
    yield from _of("UMask", types.MODE)
    yield from _of("MemoryDenyWriteExecute", types.ONLY_YES, settable=True)
    yield from _of("SystemCallFilter", types.SYSTEM_CALLS, settable=True)
    yield from _of("RestrictAddressFamilies", types.FILTER)
    yield from _of("RestrictNamespaces", types.NAMESPACES)
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
