"""What [Unit], [Service] and [Install] of a declaration may have: the rest would break the sandbox, or has no effect.

[Unit] may have what systemd.unit(5) has, except what gets in the way of a task. [Service] has a closed list: when to
start again, timeouts, resource control. Command line, user, sandbox and console are those of every task.

systemd logs a warning for a malformed value and starts the unit without it, which an operator does not see. So a
setting that is passed on has a check of its value.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches

from solo5_systemd.task.properties import SETTABLE
from solo5_systemd.task.property_types import BOOLEAN, form
from solo5_systemd.task.quantities import parse_time_span
from solo5_systemd.task.settings import KEYS, SECTION

Check = Callable[[str], object]
"""Checks a value that is not empty; raises ValueError with what was expected."""


def _one_of(*known: str) -> Check:
    return form("|".join(known), f"one of {', '.join(known)}", str)


def _words(pattern: str, expected: str) -> Check:
    word = form(pattern, expected, str)
    return lambda value: [word(each) for each in value.split()]


def _time(value: str) -> None:
    if value != "infinity":
        parse_time_span(value)


_statuses = _words(
    "[01]?[0-9]{1,2}|2[0-4][0-9]|25[0-5]|SIG[A-Z0-9+-]{2,12}|[A-Z][A-Z_]{2,30}",
    "exit statuses and signals, such as 64 SIGKILL",
)
_units = _words(  # in quotes, too, which systemd.syntax(7) permits: a name has no blank
    r"""(["']?)[A-Za-z0-9:_.\\@%-]{1,255}\.[a-z]{3,9}\1""", "names of units, such as multi-user.target"
)
_number = form("[0-9]{1,9}", "a whole number", str)
_instance = form("[A-Za-z0-9_.-]{1,128}", "the name of an instance, of letters, digits, '_', '.' and '-'", str)

_CONDITIONS = """
    Architecture Virtualization Host KernelCommandLine KernelVersion Credential Environment Security
    Capability ACPower NeedsUpdate FirstBoot PathExists PathExistsGlob PathIsDirectory PathIsSymbolicLink
    PathIsMountPoint PathIsReadWrite PathIsEncrypted DirectoryNotEmpty FileNotEmpty FileIsExecutable User Group
    ControlGroupController Memory CPUs CPUFeature OSRelease MemoryPressure CPUPressure IOPressure
    """.split()

CHECKS = frozenset(f"{kind}{name}" for kind in ("Condition", "Assert") for name in _CONDITIONS) | {"ConditionFirmware"}
"""Settings of [Unit] of which an empty one resets all of its kind."""

_SINGLE: tuple[tuple[str, Check | None, str], ...] = (
    ("Unit", None, "Description OnSuccessJobMode OnFailureJobMode FailureAction SuccessAction StartLimitAction"),
    ("Unit", None, "FailureActionExitStatus SuccessActionExitStatus JobTimeoutAction JobTimeoutRebootArgument"),
    ("Unit", None, "RebootArgument"),
    ("Unit", BOOLEAN.parse, "IgnoreOnIsolate StopWhenUnneeded AllowIsolate DefaultDependencies SurviveFinalKillSignal"),
    ("Unit", _time, "JobTimeoutSec JobRunningTimeoutSec StartLimitIntervalSec"),
    ("Unit", _number, "StartLimitBurst"),
    # Without `on-watchdog`: a guest has no watchdog.
    ("Service", _one_of("no", "on-success", "on-failure", "on-abnormal", "on-abort", "always"), "Restart"),
    ("Service", _one_of("normal", "direct"), "RestartMode"),
    ("Service", _number, "RestartSteps"),
    ("Service", _time, "RestartSec RestartMaxDelaySec RuntimeRandomizedExtraSec TimeoutStartSec"),
    ("Install", _instance, "DefaultInstance"),
)
_LISTS: tuple[tuple[str, Check | None, str], ...] = (
    ("Unit", None, "Documentation RequiresMountsFor WantsMountsFor"),
    ("Unit", None, " ".join(CHECKS)),
    ("Unit", _units, "Wants Requires Requisite BindsTo PartOf Upholds Conflicts Before After OnFailure OnSuccess"),
    ("Unit", _units, "PropagatesReloadTo ReloadPropagatedFrom PropagatesStopTo StopPropagatedFrom"),
    ("Service", _statuses, "RestartPreventExitStatus RestartForceExitStatus SuccessExitStatus"),
    ("Install", _units, "WantedBy RequiredBy UpheldBy Also Alias"),
)
"""The settings that are passed on to systemd (257 and earlier: one that is unknown there would be ignored), by section.

Those of `_LISTS` may be repeated in a file. One without a check is systemd's to check.
"""

_PASSED_ON = {name: (section, check) for section, check, names in (*_SINGLE, *_LISTS) for name in names.split()}

UNIT, SERVICE_PASSED_ON, INSTALL = (
    frozenset(name for name, (section, _) in _PASSED_ON.items() if section == which)
    for which in ("Unit", "Service", "Install")
)

SECTIONS: Mapping[str, frozenset[str]] = {
    "Unit": UNIT,
    SECTION: frozenset(KEYS),
    "Service": SERVICE_PASSED_ON | frozenset(SETTABLE),
    "Install": INSTALL,
}
"""The settings of each section; those of [Service] that are not passed on are part of the task as with --property."""

LISTS = frozenset(
    {
        *(name for _, _, names in _LISTS for name in names.split()),
        *("SystemCallFilter", "IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax"),
        *(name for name, key in KEYS.items() if key.is_list),
    }
)
"""Settings that may be repeated in a file; they are unique among the sections."""


CHECK_OF = {name: check for name, (_, check) in _PASSED_ON.items() if check}
"""The checks of values that are passed on, by setting."""

SINCE: Mapping[str, int] = {
    "RestartMaxDelaySec": 254,
    "RestartMode": 254,
    "RestartSteps": 254,
    "SurviveFinalKillSignal": 255,
    "UpheldBy": 254,
    "WantsMountsFor": 256,
}
"""The release of systemd that has a setting, of those that not every supported one has: others ignore it."""

_BESIDE = (
    "a program next to the tender would run outside of its sandbox: expected a unit of its own, with Before= or After= "
    "in [Unit]"
)
_CONSOLE = "the console of every task is in the journal: expected Label= or LogField= in [Unikernel] for fields of it"

_REFUSED: tuple[tuple[str, str], ...] = (
    # Of systemd.unit(5)
    ("JoinsNamespaceOf", "the sandbox is that of every task: expected it left out"),
    ("RefuseManual(Start|Stop)", "updates and `solo5ctl stop` start and stop the unit: expected it left out"),
    ("SourcePath", "it is the path of the declaration: expected it left out"),
    ("CollectMode", "the outcome of a task is kept until it is removed: expected it left out"),
    # Of systemd.service(5), systemd.exec(5) and systemd.resource-control(5)
    ("ExecStart", "the command line is the tender's: expected Image= and Argument= in [Unikernel]"),
    ("ExecReload", "a changed declaration is an update, which `systemctl reload` makes: expected it left out"),
    ("ExecStop", "a guest sees no stop: expected KillSignal= and TimeoutStopSec="),
    ("Exec(Condition|StartPre|StartPost|StopPost|ReloadPost)", _BESIDE),
    ("User|Group|DynamicUser|SupplementaryGroups|PAMName", "every task has a user of its own: expected it left out"),
    (
        "(Pass|Unset)?Environment(File)?",
        "a guest has no environment: expected Argument= in [Unikernel], or a file in a disk",
    ),
    ("Standard(Input|Output|Error)|Standard.*|Syslog.*|LogLevelMax|LogNamespace|LogFilterPatterns|TTY.*", _CONSOLE),
    ("LogExtraFields", "expected LogField= in [Unikernel]"),
    ("MemoryMax|MemoryLimit", "expected Memory= or MemoryMax= in [Unikernel]"),
    ("CPUShares|StartupCPUWeight", "expected CPUWeight= in [Unikernel]"),
    ("IPAddress(Allow|Deny)|SocketBind(Allow|Deny)|RestrictNetworkInterfaces", "expected Egress= in [Unikernel]"),
    ("NetworkNamespacePath|PrivateNetwork", "expected NetworkNamespace= in [Unikernel]"),
    (
        "(Load|Set|Import)Credential(Encrypted)?",
        "a guest has no directory of credentials: expected Block=NAME=credential:CREDENTIAL in [Unikernel]",
    ),
    (
        "(Watchdog|TimeoutAbort)Sec|WatchdogSignal|NotifyAccess",
        "a guest sends no notifications: expected Ready= and Watch= in [Unikernel] for updates",
    ),  # fmt: skip
    ("TimeoutSec", "expected TimeoutStartSec= and TimeoutStopSec="),
)
"""Patterns of settings that systemd has and a declaration does not, and what to do instead."""


def refusal(section: str, key: str, systemd: int) -> str:
    """Return why a section, or a setting in it, is not permitted, as a sentence; empty: it is permitted."""
    if section not in SECTIONS:
        return f"[{section}] is not a section of a declaration: expected {_nearest(section, SECTIONS)}."
    if key in SECTIONS[section]:
        is_known = SINCE.get(key, 0) <= systemd
        return "" if is_known else f"{key}= needs systemd {SINCE[key]}: expected it left out with {systemd}."
    if others := [f"[{other}]" for other, known in SECTIONS.items() if key in known]:
        return f"{key}= is in [{section}]: expected it in {' or '.join(others)}."
    if reason := next((reason for pattern, reason in _REFUSED if re.fullmatch(pattern, key, re.ASCII)), ""):
        return f"{key}= is not permitted: {reason}."
    if section == "Service" and not _near(key, SECTIONS[section]):
        return f"{key}= is not permitted: type, processes and sandbox are those of every task: expected it left out."
    return f"{key}= is not a known setting of [{section}]: expected {_nearest(key, SECTIONS[section])}."


_MOST_NAMED = 30


def _nearest(word: str, known: Collection[str]) -> str:
    """Return the nearest known word, or all of them where none is near."""
    if near := _near(word, known):
        return f"{near}, the nearest one"
    return f"one of {', '.join(sorted(known))}" if len(known) <= _MOST_NAMED else "one that solo5.unikernel(5) permits"


def _near(word: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in sorted(known)}
    return next((by_lower[near] for near in get_close_matches(word.lower()[:64], by_lower, n=1)), "")
