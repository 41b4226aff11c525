"""Why a service of ours does not answer, as far as this machine shows it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from solo5_systemd.errors import DependencyError, HostError

T = TypeVar("T")

LATE = 1.0
"""Seconds without an answer after which it is looked at whether the service lacks something. The bus does not report a
start that failed: a call waits for all of its timeout then."""


async def answer(service: str, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call to a service, or raise early where the service cannot start.

    Args:
        service: its name, as in `Dependency.needed_by`.
        call: the call.

    Raises:
        DependencyError: the service lacks something, and gave no answer in a second.
        Exception: whatever the call raises.
    """
    calling = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({calling}, timeout=LATE)
        lacking = None if done else await asyncio.to_thread(_lacking, service)
        if lacking is not None:
            raise lacking
        return await calling
    finally:
        calling.cancel()


def unanswered(service: str, reason: str) -> HostError:
    """Return the error of a call that failed: what the service lacks, or else the bus's own words.

    Args:
        service: its name, as in `Dependency.needed_by`.
        reason: the text of the D-Bus error.
    """
    return _lacking(service) or HostError(
        f"{service} did not start or did not answer: {reason}.",
        f"`systemctl status {service}` and `journalctl -u {service}` show why.",
    )


def _lacking(service: str) -> DependencyError | None:
    from solo5_systemd.host.presence import missing

    for each in missing(program=service):
        return DependencyError(f"{service} cannot start: {each.kind} {each.name} is missing.", each.advice)
    return None
