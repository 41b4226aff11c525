"""Look at the machine from time to time, and tell Nomad when it has changed."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from solo5_systemd.nomad.fingerprint import HEALTHY, Fingerprint, response
from solo5_systemd.nomad.proto import driver_pb2 as wire

PERIOD = 30.0
"""Seconds between two looks, as Nomad's own drivers have it."""

SICK_PERIOD = 5.0
"""The same while something is missing: it is waited for."""

_log = logging.getLogger(__name__)


async def fingerprints(
    look: Callable[[], Awaitable[Fingerprint]], stir: asyncio.Event
) -> AsyncGenerator[wire.FingerprintResponse, None]:
    """One answer now, and another whenever it is another; never ends, since Nomad would begin again at once.

    Args:
        look: at the machine.
        stir: set where a look is due before its time.
    """
    last: Fingerprint | None = None
    while True:
        stir.clear()
        found = await look()
        if found != last:
            _announce(found, last)
            yield response(found, last.attributes if last else {})
            last = found
        await _patience(stir, PERIOD if found.health == HEALTHY else SICK_PERIOD)


def _announce(found: Fingerprint, last: Fingerprint | None) -> None:
    if last is None or found.description != last.description:
        level = logging.INFO if found.health == HEALTHY else logging.WARNING
        _log.log(level, "%s", found.description)


async def _patience(stir: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stir.wait()
    except TimeoutError:
        pass
