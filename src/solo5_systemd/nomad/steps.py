"""The steps of a start as events tell them: in the same words, whichever process takes them."""

from collections.abc import Sequence
from typing import Protocol

from solo5_systemd.engine.task import Preflight
from solo5_systemd.network.model import Lease
from solo5_systemd.nomad import announcements
from solo5_systemd.nomad.announcements import Announcement
from solo5_systemd.nomad.ready import Rule, refuse


class Audience(Protocol):
    """Who hears of a start; each call returns at once."""

    def begins(self, doing: str) -> None:
        """The next step, which is told of if it is slow."""

    def tell(self, announcement: Announcement) -> None:
        """What has been done."""


class Steps:
    """One start; fulfils `task.Progress`.

    Args:
        audience: who hears of it.
        rule: by which the task is to be ready; it ends the start where the image cannot follow it.
    """

    def __init__(self, audience: Audience, rule: Rule | None) -> None:
        self._audience = audience
        self._rule = rule

    def begins(self, doing: str) -> None:
        self._audience.begins(doing)

    def checked(self, preflight: Preflight) -> None:
        refuse(self._rule, preflight)
        self._audience.tell(announcements.checked(preflight))

    def leased(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._audience.tell(announcements.leased(leases))
