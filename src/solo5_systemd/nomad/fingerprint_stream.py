"""The stream of fingerprints to the agent: one at once, then each that differs from the last."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from solo5_systemd.nomad.fingerprint import HEALTHY, Fingerprint, response
from solo5_systemd.nomad.proto import driver_pb2 as wire

HEALTHY_INTERVAL_S = 30.0
"""Seconds between two fingerprints, as in Nomad's own drivers."""

UNHEALTHY_INTERVAL_S = 5.0
"""The same while the driver is unhealthy, so that it recovers soon."""

_log = logging.getLogger(__name__)


async def fingerprints(
    probe: Callable[[], Awaitable[Fingerprint]], refresh: asyncio.Event
) -> AsyncGenerator[wire.FingerprintResponse, None]:
    """Yield fingerprints without end: Nomad would reopen an ended stream at once.

    Args:
        probe: makes a fingerprint.
        refresh: set to make the next one without delay.
    """
    last: Fingerprint | None = None
    while True:
        refresh.clear()  # before the probe: a change during it causes another one
        found = await probe()
        if found != last:
            _log_change(found, last)
            yield response(found, last.attributes if last else {})
            last = found
        await _wait(refresh, HEALTHY_INTERVAL_S if found.health == HEALTHY else UNHEALTHY_INTERVAL_S)


def _log_change(found: Fingerprint, last: Fingerprint | None) -> None:
    if last is None or found.description != last.description:
        level = logging.INFO if found.health == HEALTHY else logging.WARNING
        _log.log(level, "%s", found.description)


async def _wait(refresh: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await refresh.wait()
    except TimeoutError:
        pass
