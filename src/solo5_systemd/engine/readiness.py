"""Wait until a guest that was started is ready, or has ended; its readiness probes.

Probes are a TCP connection, a UDP echo, and a pattern on the console. Each has a timeout and blocks nothing.

A pattern is searched for with grep(1), without privileges, which the kernel ends (docs/decisions/console-patterns.md).
That is an InvalidRequestError of what searches; that grep cannot be executed, or the journal not be read, a HostError.
"""

import asyncio
import os
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from typing import Any

from solo5_systemd.base.concurrency import background, reaped
from solo5_systemd.base.dependencies import advice
from solo5_systemd.base.errors import DependencyError, HostError, InvalidRequestError, Solo5Error, StartError
from solo5_systemd.base.names import primary_nic
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.declared.update_request import Ready, ReadyLine, ReadyPort
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Task
from solo5_systemd.journal.console import storage_problem
from solo5_systemd.journal.lines import Stream
from solo5_systemd.journal.reader import JournalReader, PollTimer, batches, console_matches
from solo5_systemd.network.model import Endpoint, Protocol
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.unit.state import UnitState

PROBE_INTERVAL_S = 0.05
"""Seconds between the first probes of a new guest."""

PROBES_PER_TIME = 20
"""Later, the time since its start is so many times the interval: hundreds that never answer take the driver's time."""

PROBE_TIMEOUT_S = 2.0
"""Seconds until a probe without an answer fails; less if `interval` of a `ready` block is."""

SETTLE_S = 1.0
"""Seconds for which a guest without a condition has to run to count as ready."""

LAST_LINE_TIMEOUT_S = 0.5
"""Seconds that the last line of an ended guest may take to reach the journal."""


async def first_of(
    state: UnitState, condition: Endpoint | ReadyLine | None, timeout_s: float, ended: asyncio.Future[Any]
) -> str | None:
    """Wait until a guest is ready, and return the evidence; None: `ended` is done before.

    Raises:
        TimeoutError: neither in time; its text is why the condition does not hold, without a period.
    """
    why = f"it has to run for {SETTLE_S:g} s"  # of a port, the failure of the last probe
    if condition is not None:
        why = "no line matched" if isinstance(condition, ReadyLine) else "not probed"

    async def evidence() -> str:
        nonlocal why
        if condition is None:
            await asyncio.sleep(SETTLE_S)
            return f"it runs for {SETTLE_S:g} s"
        if isinstance(condition, ReadyLine):
            line = await first_line(state.unit, state.started, condition.pattern, state.log_namespace)
            return f"console line “{bounded(line, MAX_QUOTE)}”"
        now = asyncio.get_running_loop().time
        begun = now()
        while why:
            # First, since a frame is lost before the tender has opened its tap; ever later, for guests that never are.
            await asyncio.sleep(max(PROBE_INTERVAL_S, (now() - begun) / PROBES_PER_TIME))
            why = await failure(condition, PROBE_TIMEOUT_S)
        return f"{condition} answers"

    async with background(evidence()) as ready:
        await asyncio.wait((ready, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and isinstance(condition, ReadyLine):
            # PID 1 may report the end before journald has stored the last line.
            await asyncio.wait((ready,), timeout=LAST_LINE_TIMEOUT_S)
        if ready.done():
            return ready.result()
        if ended.done():
            return None
        if isinstance(condition, ReadyLine) and (problem := await storage_problem(state.log_namespace)):
            why = problem.rstrip(".")
        raise TimeoutError(why)


async def until_ready(runtime: Runtime, task: Task, condition: Ready | None, timeout_s: float) -> str:
    """Wait until the guest of an update is ready, and return the evidence; StartError: it has ended, or is late."""
    known = _endpoint(task, condition) if isinstance(condition, ReadyPort) else condition
    async with background(end_of(runtime, task)) as ended:
        try:
            found = await first_of(task.state, known, timeout_s, ended)
        except TimeoutError as error:
            why = f" ({condition or 'it runs'}): {error}"
            raise StartError(f"the new guest was not ready within {timeout_s:g} s{why}.") from error
        if found is None:
            raise StartError(f"the new guest ended before it was ready: {ended.result()}.")
        return found


async def end_of(runtime: Runtime, task: Task) -> str:
    """Wait for the end of a guest, and return the reason without a period."""
    try:
        outcome = (await runtime.wait_for_run(task.state)).outcome
    except Solo5Error as error:
        return error.sentence.removesuffix(".")
    return outcome.sentence if outcome is not None else "it was removed"


def _endpoint(task: Task, condition: ReadyPort) -> Endpoint:
    """Return the guest's address that has a port: that of the NIC to which it is published, or of the primary one."""
    leases = task.reservation.leases if task.reservation else ()
    primary = primary_nic([lease.nic for lease in leases])
    published = task.reservation.ports if task.reservation else ()
    nic = next((each.nic for each in published if each.port == condition.port), primary)
    lease = next((each for each in leases if each.nic == nic), None)
    if lease is None or lease.first_address is None:
        raise InvalidRequestError(
            f"port {condition.port} of task {task.name} cannot be probed: expected a NIC with a leased address.",
            "Use --ready console:PATTERN.",
        )
    return Endpoint(protocol=condition.protocol, address=lease.first_address, port=condition.port)


GREP = "/usr/bin/grep"
NICE = "/usr/bin/nice"
PRLIMIT = "/usr/bin/prlimit"
SETPRIV = "/usr/bin/setpriv"

CPU_LIMIT_S = 5
"""Seconds of processor time for all lines of one start: enough for a million lines and a reasonable pattern."""

MEMORY_LIMIT = 256 << 20
"""Bytes of address space."""

CHECK_TIMEOUT_S = 60.0
"""Seconds until grep has compiled a pattern."""

LOWEST_PRIORITY = 19

_NOBODY = "65534"
_OPTIONS = ("--perl-regexp", "--text", "--max-count=1", "--no-messages", "--regexp")
_NOT_EXECUTED = (126, 127)
"""Exit statuses of a program that cannot execute the next one."""

_ENVIRONMENT = {"LC_ALL": "C"}
"""Bytes are searched as bytes, and messages are in English."""


async def check_pattern(pattern: str) -> None:
    """Compile a pattern.

    Raises:
        InvalidRequestError: it is not a regular expression, or takes too long to compile.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S), _running(pattern) as process:
            assert process.stdin is not None  # noqa: S101 - a pipe was requested
            process.stdin.close()
            await process.wait()
    except TimeoutError as error:
        raise HostError(f"{GREP} did not compile {pattern!r} within {CHECK_TIMEOUT_S:.0f} s.") from error
    if process.returncode != 1:  # no line, no match
        raise await _failure(pattern, process)


async def first_match(pattern: str, lines: AsyncGenerator[Iterable[bytes], None]) -> bytes:
    """Return the first line in which a pattern is found.

    Args:
        lines: batches of lines without newlines; waits for new lines. Its errors are raised, too.
    """
    async with _running(pattern) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was requested
        async with background(_feed(process, lines)) as feeding, background(process.stdout.readline()) as finding:
            await asyncio.wait((feeding, finding), return_when=asyncio.FIRST_COMPLETED)
            if not finding.done():
                await feeding  # raises the error of `lines`, if it failed
            found = await finding
        if found:
            return found
        raise await _failure(pattern, process)


async def _feed(process: Process, lines: AsyncGenerator[Iterable[bytes], None]) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe was requested
    async with aclosing(lines):  # else its end would come with a collection of garbage
        with suppress(BrokenPipeError, ConnectionResetError):
            async for batch in lines:
                # A newline inside a line would make two lines of it for grep.
                process.stdin.write(b"".join(line.replace(b"\n", b" ") + b"\n" for line in batch))
                await process.stdin.drain()


@asynccontextmanager
async def _running(pattern: str) -> AsyncIterator[Process]:
    """Yield grep(1) with its limits; kill and reap it at the end of the block. Only root has privileges to drop."""
    dropped = (f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--bounding-set=-all")
    try:
        process = await asyncio.create_subprocess_exec(
            PRLIMIT, f"--cpu={CPU_LIMIT_S}", f"--as={MEMORY_LIMIT}", "--core=0",
            NICE, f"--adjustment={LOWEST_PRIORITY}",
            SETPRIV, "--no-new-privs", "--inh-caps=-all", *(dropped if os.geteuid() == 0 else ()), "--",
            GREP, *_OPTIONS, pattern,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_ENVIRONMENT,
        )  # fmt: skip
    except OSError as error:
        raise _not_executed(f"{PRLIMIT}: {error.strerror}") from error
    async with reaped(process):
        yield process


async def _failure(pattern: str, process: Process) -> Solo5Error:
    """Return the error of a process that found nothing and has ended."""
    assert process.stderr is not None  # noqa: S101 - a pipe was requested
    text = await process.stderr.read()
    status = await process.wait()
    if status in (-signal.SIGKILL, -signal.SIGXCPU):
        return InvalidRequestError(
            f"the search for {pattern!r} was ended after {CPU_LIMIT_S} s of processor time.",
            "Use a pattern with fewer repetitions and alternatives.",
        )
    words = text.decode("utf-8", "replace").strip().removeprefix(f"{GREP}: ")
    if status in _NOT_EXECUTED:
        return _not_executed(words)
    return InvalidRequestError(f"{pattern!r} cannot be searched for: {words.removeprefix('(standard input): ')}.")


def _not_executed(words: str) -> DependencyError:
    program = next((each for each in (PRLIMIT, NICE, SETPRIV) if each in words), GREP)
    return DependencyError(f"a console cannot be searched: {words}.", advice(program))


_DNS_PORT = 53
_DNS_QUERY = bytes.fromhex("0100 0001 0000 0000 0000 00 0002 0001")
"""A query for the name servers of the root (RFC 1035), after its identifier: no server of names returns an echo."""

CONSOLE_INTERVAL_S = 0.05
"""Seconds between two polls of the journal."""

BATCH_LINES = 32
"""Lines of one batch. The event loop runs other work between two batches, also under a flood."""

LINE_MAX_BYTES = 4096
"""Bytes of a line that are searched."""


async def failure(endpoint: Endpoint, timeout_s: float) -> str:
    """Probe an endpoint once, and return why it failed, in a few words; empty if the guest answered."""
    try:
        async with asyncio.timeout(timeout_s):
            with await _socket(endpoint) as sock:
                await asyncio.get_running_loop().sock_connect(sock, (str(endpoint.address), endpoint.port))
                return "" if endpoint.protocol is Protocol.TCP else await _echo(sock, endpoint.port)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except HostError as error:  # the namespace is gone
        return error.sentence
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


async def _echo(sock: socket.socket, port: int) -> str:
    # The nonce distinguishes this echo from that of an earlier probe, and from other protocols.
    loop, request = asyncio.get_running_loop(), b"solo5-ready " + os.urandom(8).hex().encode() + b"\n"
    if port == _DNS_PORT:
        request = os.urandom(2) + _DNS_QUERY
    await loop.sock_sendall(sock, request)
    response = await loop.sock_recv(sock, 2 * len(request))
    if port == _DNS_PORT and response[:2] == request[:2]:  # of whatever status
        return ""
    return "" if response == request else "the response is not an echo"


async def _socket(endpoint: Endpoint) -> socket.socket:
    """Return a socket of the endpoint's family and network namespace, in which it stays."""
    family = socket.AF_INET if endpoint.address.version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if endpoint.protocol is Protocol.TCP else socket.SOCK_DGRAM
    if not endpoint.namespace:
        return socket.socket(family, kind | socket.SOCK_NONBLOCK)

    def opened() -> socket.socket:
        with closing(NetworkNamespace(endpoint.namespace)) as namespace, namespace.entered():
            return socket.socket(family, kind | socket.SOCK_NONBLOCK)

    return await asyncio.to_thread(opened)


async def first_line(unit: str, since: int, pattern: str, namespace: str = "") -> str:
    """Return the first line of a guest's console that matches a pattern; wait for it.

    Args:
        since: microseconds since the epoch; earlier lines are ignored.
        namespace: the journal namespace of the console; empty: the host's journal.
    """
    async with aclosing(_console(unit, since, namespace)) as lines:
        return (await first_match(pattern, lines)).decode("utf-8", "replace").strip()


async def _console(unit: str, since: int, namespace: str) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of a guest's console in batches, each line cut to `LINE_MAX_BYTES`."""
    with closing(JournalReader(console_matches(unit, Stream.STDOUT), namespace)) as journal:
        journal.watch()
        journal.seek_realtime(since)
        caught_up = False
        timer = PollTimer(CONSOLE_INTERVAL_S, CONSOLE_INTERVAL_S)
        async with aclosing(batches(journal, BATCH_LINES, lambda: False, timer)) as found:
            async for lines in found:
                # Not later: the clock may be set back while the guest runs.
                run = lines if caught_up else [line for line in lines if line.realtime >= since]
                yield [line.data.removesuffix(b"\n")[:LINE_MAX_BYTES] for line in run]
                caught_up |= len(lines) < BATCH_LINES
