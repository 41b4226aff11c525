"""Is the guest ready? Each probe is one question with a time-out of its own, and holds nobody else up."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from itertools import islice

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.reader import JournalReader, console_matches
from solo5_systemd.network.model import Protocol
from solo5_systemd.nomad.config.ready import Endpoint
from solo5_systemd.nomad.readiness import regex

LOOK = 0.05
"""Seconds between two looks into the journal."""

SLICE = 32
"""Lines of one look: a flood is read in many, with others' work in between."""

LONGEST = 4096
"""Bytes of a line that are searched."""


async def problem(endpoint: Endpoint, patience: float) -> str:
    """Why the guest does not answer, in a few words; empty where it does.

    Args:
        endpoint: where it is asked.
        patience: seconds that it has.
    """
    ask = _connects if endpoint.protocol is Protocol.TCP else _echoes
    try:
        async with asyncio.timeout(patience):
            return await ask(endpoint)
    except TimeoutError:
        return f"no answer within {patience:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


async def _connects(endpoint: Endpoint) -> str:
    with _socket(socket.SOCK_STREAM) as asking:
        await asyncio.get_running_loop().sock_connect(asking, (str(endpoint.address), endpoint.port))
    return ""


async def _echoes(endpoint: Endpoint) -> str:
    """Another answer than the echo belongs to an earlier question, or to another protocol."""
    loop, said = asyncio.get_running_loop(), b"solo5-ready " + os.urandom(8).hex().encode() + b"\n"
    with _socket(socket.SOCK_DGRAM) as asking:
        await loop.sock_connect(asking, (str(endpoint.address), endpoint.port))
        await loop.sock_sendall(asking, said)
        heard = await loop.sock_recv(asking, 2 * len(said))
    return "" if heard == said else "its answer is no echo"


def _socket(kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)


async def line(unit: str, since: int, pattern: str, namespace: str = "") -> str:
    """Return the first line of a guest's console in which a pattern is found.

    Args:
        unit: the task's.
        since: microseconds since the epoch; lines of this time or later count.
        pattern: a regular expression that `grep.check` accepts.
        namespace: of the journal that has the console; empty: the host's.

    Raises:
        HostError: the journal cannot be read.
        InvalidRequestError: the search took too long.
    """
    async with aclosing(_console(unit, since, namespace)) as lines:
        return (await regex.first_match(pattern, lines)).decode("utf-8", "replace").strip()


async def _console(unit: str, since: int, namespace: str) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of a guest's console, as far as they are searched."""
    with closing(JournalReader(console_matches(unit, Stream.STDOUT), namespace)) as journal:
        journal.watch()
        lines = journal.lines_from(since)
        while True:
            journal.refresh()
            seen = list(islice(lines, SLICE))
            yield [each.data.removesuffix(b"\n")[:LONGEST] for each in seen]
            if len(seen) < SLICE:
                lines = iter(journal.next, None)
            await asyncio.sleep(0 if len(seen) == SLICE else LOOK)
