"""Checks of the lines of [Unit], [Service] and [Install] that systemd reads: a value that it would ignore is refused.

systemd logs a warning for a malformed value and starts the unit without it, which an operator does not see.
"""

import re
from collections.abc import Callable, Mapping

from solo5_systemd.task.property_types import BOOLEAN
from solo5_systemd.task.time_span import parse_time_span

RESTART = ("no", "on-success", "on-failure", "on-abnormal", "on-abort", "always")
"""Values of Restart=. `on-watchdog` is left out: a guest has no watchdog."""

RESTART_MODES = ("normal", "direct")

_STATUS = re.compile(r"[0-9]{1,3}|SIG[A-Z0-9+-]{2,12}|[A-Z][A-Z_]{2,30}", re.ASCII)
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@%-]{1,255}\.[a-z]{3,9}", re.ASCII)
_INSTANCE = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_INTEGER = re.compile(r"[0-9]{1,9}", re.ASCII)


def check_value(key: str, value: str) -> None:
    """Check the value of a line that is passed on; a setting without a check here is systemd's to check.

    Args:
        key: of [Unit], [Service] or [Install].
        value: not empty.

    Raises:
        ValueError: malformed; the message is what was expected.
    """
    if check := _CHECKS.get(key):
        check(value)


def _one_of(known: tuple[str, ...]) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in known:
            raise ValueError(f"one of {', '.join(known)}")

    return check


def _time(value: str) -> None:
    if value != "infinity":
        parse_time_span(value)


def _number(value: str) -> None:
    if not _INTEGER.fullmatch(value):
        raise ValueError("a whole number")


def _statuses(value: str) -> None:
    for word in value.split():
        if not _STATUS.fullmatch(word) or (word.isdigit() and int(word) > 255):
            raise ValueError("exit statuses and signals, such as 64 SIGKILL")


def _units(value: str) -> None:
    if not all(_UNIT_NAME.fullmatch(_unquoted(word)) for word in value.split()):
        raise ValueError("names of units, such as multi-user.target")


def _unquoted(word: str) -> str:
    """Return a unit's name without the quotes that systemd.syntax(7) permits: a name has no blank."""
    return word[1:-1] if len(word) > 2 and word[0] == word[-1] and word[0] in "'\"" else word


def _instance(value: str) -> None:
    if not _INSTANCE.fullmatch(value):
        raise ValueError("the name of an instance, of letters, digits, '_', '.' and '-'")


def _boolean(value: str) -> None:
    BOOLEAN.parse(value)


_CHECKS: Mapping[str, Callable[[str], None]] = {
    "Restart": _one_of(RESTART),
    "RestartMode": _one_of(RESTART_MODES),
    "RestartSteps": _number,
    "StartLimitBurst": _number,
    "DefaultInstance": _instance,
    **dict.fromkeys(("RestartSec", "RestartMaxDelaySec", "RuntimeRandomizedExtraSec", "TimeoutStartSec"), _time),
    **dict.fromkeys(("StartLimitIntervalSec", "JobTimeoutSec", "JobRunningTimeoutSec"), _time),
    **dict.fromkeys(("RestartPreventExitStatus", "RestartForceExitStatus", "SuccessExitStatus"), _statuses),
    **dict.fromkeys(("StopWhenUnneeded", "IgnoreOnIsolate", "AllowIsolate", "DefaultDependencies"), _boolean),
    **dict.fromkeys(("SurviveFinalKillSignal",), _boolean),
    **dict.fromkeys(("Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts"), _units),
    **dict.fromkeys(("Before", "After", "OnFailure", "OnSuccess", "PropagatesReloadTo"), _units),
    **dict.fromkeys(("ReloadPropagatedFrom", "PropagatesStopTo", "StopPropagatedFrom"), _units),
    **dict.fromkeys(("WantedBy", "RequiredBy", "UpheldBy", "Also", "Alias"), _units),
}
"""By setting."""
