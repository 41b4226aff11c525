"""Readiness probes: a TCP connection, a UDP echo, a pattern on the console. Each has a timeout and blocks nothing."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing

from solo5_systemd.journal.follow import PollTimer, batches
from solo5_systemd.journal.lines import Stream
from solo5_systemd.journal.reader import JournalReader, console_matches
from solo5_systemd.network.model import Protocol
from solo5_systemd.nomad.config.ready import Endpoint
from solo5_systemd.nomad.readiness import regex

POLL_INTERVAL_S = 0.05
"""Seconds between two polls of the journal."""

BATCH_LINES = 32
"""Lines of one batch. The event loop runs other work between two batches, also under a flood."""

LINE_MAX_BYTES = 4096
"""Bytes of a line that are searched."""


async def failure(endpoint: Endpoint, timeout_s: float) -> str:
    """Probe an endpoint once, and return why it failed, in a few words; empty if the guest answered.

    Args:
        endpoint: the target.
        timeout_s: seconds until a probe without an answer fails.
    """
    probe = _connect if endpoint.protocol is Protocol.TCP else _echo
    try:
        async with asyncio.timeout(timeout_s):
            return await probe(endpoint)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


async def _connect(endpoint: Endpoint) -> str:
    with _socket(socket.SOCK_STREAM) as sock:
        await asyncio.get_running_loop().sock_connect(sock, (str(endpoint.address), endpoint.port))
    return ""


async def _echo(endpoint: Endpoint) -> str:
    # The nonce tells this echo from that of an earlier probe, and from other protocols.
    loop, request = asyncio.get_running_loop(), b"solo5-ready " + os.urandom(8).hex().encode() + b"\n"
    with _socket(socket.SOCK_DGRAM) as sock:
        await loop.sock_connect(sock, (str(endpoint.address), endpoint.port))
        await loop.sock_sendall(sock, request)
        response = await loop.sock_recv(sock, 2 * len(request))
    return "" if response == request else "the response is not an echo"


def _socket(kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)


async def first_line(unit: str, since: int, pattern: str, namespace: str = "") -> str:
    """Return the first line of a guest's console that matches a pattern; wait for it.

    Args:
        unit: the task's unit.
        since: microseconds since the epoch; earlier lines are ignored.
        pattern: a regular expression that `regex.check` accepts.
        namespace: the journal namespace of the console; empty: the host's journal.

    Raises:
        HostError: the journal cannot be read.
        InvalidRequestError: the search exceeded its limit of processor time.
    """
    async with aclosing(_console(unit, since, namespace)) as lines:
        return (await regex.first_match(pattern, lines)).decode("utf-8", "replace").strip()


async def _console(unit: str, since: int, namespace: str) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of a guest's console in batches, each line cut to `LINE_MAX_BYTES`."""
    with closing(JournalReader(console_matches(unit, Stream.STDOUT), namespace)) as journal:
        journal.watch()
        journal.seek_realtime(since)
        caught_up = False
        timer = PollTimer(POLL_INTERVAL_S, POLL_INTERVAL_S)
        async with aclosing(batches(journal, BATCH_LINES, lambda: False, timer)) as found:
            async for lines in found:
                # Not later: the clock may be set back while the guest runs.
                run = lines if caught_up else [line for line in lines if line.realtime >= since]
                yield [line.data.removesuffix(b"\n")[:LINE_MAX_BYTES] for line in run]
                caught_up |= len(lines) < BATCH_LINES
