"""Which restarts of a declared task cannot help, and what is reported of them.

systemd restarts a service by its exit status alone (Restart=). What the outcome adds is in the journal of the unit, and
a restart that would fail as the first start did is withheld.
"""

from signal import SIGABRT

from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.unit.state import MainCode, UnitState

NOT_RETRIED = "63 64"
"""Exit statuses of a guest that a restart repeats: --help, and a wrong argument (MirageOS, cmdliner)."""

_OF_THE_START = (Ending.TENDER_REFUSED, Ending.GUEST_OUT_OF_MEMORY)
"""Ends of a guest that was not entered, or came no further than its first lines. Other outcomes that cannot get better
may be the end of a long run: a guest whose memory has leaked is to be started again."""

_STATUSES = (1, 255)
"""Of a tender that refuses, unless an assertion of it fails; and of an abort."""

_PASSING = ("Cannot allocate memory", "Device or resource busy", "Resource temporarily unavailable", "Too many open")
"""Errors of the host in the messages of a tender, which a later start may not have."""


def may_be_withheld(state: UnitState) -> bool:
    """Return whether `is_withheld` may be true of a run: without the journal, which takes a moment to be read."""
    by_itself = state.main_code == MainCode.EXITED and state.main_status in _STATUSES
    return by_itself or (state.main_code != MainCode.EXITED and state.main_status == SIGABRT)


def is_withheld(found: Outcome) -> bool:
    """Return whether a restart would fail again in the same way, whatever the host does."""
    at_the_start = found.ending in _OF_THE_START and not found.retry
    return at_the_start and not any(error in found.sentence for error in _PASSING)


def not_restarted(name: str, found: Outcome, restart: str) -> str:
    """Return what is reported of a run after which no start follows; empty where a restart could help.

    Args:
        restart: the value of Restart=.
    """
    if restart == "no" or found.clean or found.retry:
        return ""
    return f"{found.verdict}. Restart={restart} does not start it again. After a change: systemctl start {name}"
