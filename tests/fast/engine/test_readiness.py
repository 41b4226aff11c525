"""Readiness probes: TCP, UDP echo and console pattern, which is grep's, each with its failure and its timeout."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from tests.support.fakes.background import Background
from tests.support.fakes.journal import Journal
from tests.support.fakes.tasks import running

from solo5_systemd.base.errors import DependencyError, InvalidRequestError
from solo5_systemd.engine import readiness
from solo5_systemd.network.model import Endpoint, Protocol

HERE = IPv4Address("127.0.0.1")
UNIT = "solo5-task-web.service"


def at(protocol: Protocol, port: int) -> Endpoint:
    return Endpoint(protocol=protocol, address=HERE, port=port)


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncGenerator[int, None]:
    """A port that answers each datagram."""

    class Answer(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            if response := answer(data):
                self.transport.sendto(response, addr)  # type: ignore[attr-defined]

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Answer, (str(HERE), 0))
    yield transport.get_extra_info("sockname")[1]
    transport.close()


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def closed(request: pytest.FixtureRequest) -> Generator[Endpoint, None, None]:
    """A port of the host without a listener."""
    with socket.socket(socket.AF_INET, request.param) as taken:
        taken.bind((str(HERE), 0))
        port = taken.getsockname()[1]
        if request.param == socket.SOCK_DGRAM:
            taken.close()
        yield at(Protocol.TCP if request.param == socket.SOCK_STREAM else Protocol.UDP, port)


async def test_a_port_without_a_listener_is_refused(closed: Endpoint) -> None:
    assert await readiness.failure(closed, 1) == "connection refused"


@pytest.mark.parametrize(
    "answer, seconds, error", [(b"no echo", 1, "the response is not an echo"), (b"", 0.05, "no answer within 0.05 s")]
)
async def test_another_datagram_than_an_echo_is_no_answer(answer: bytes, seconds: float, error: str) -> None:
    async with answering(lambda _: answer) as port:
        assert await readiness.failure(at(Protocol.UDP, port), seconds) == error


async def test_a_server_of_names_answers_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def refuse(data: bytes) -> bytes:
        seen.append(data)
        return data[:2] + bytes.fromhex("8105") + data[4:]  # a response, REFUSED

    async with answering(refuse) as port:
        monkeypatch.setattr(readiness, "_DNS_PORT", port)
        assert await readiness.failure(at(Protocol.UDP, port), 1) == ""
    assert seen[0][2:] == bytes.fromhex("010000010000000000000000020001")
    async with answering(lambda data: b"xx" + data[2:]) as port:
        monkeypatch.setattr(readiness, "_DNS_PORT", port)
        assert await readiness.failure(at(Protocol.UDP, port), 1) == "the response is not an echo"


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    made = Journal()
    monkeypatch.setattr(readiness, "JournalReader", made.open)
    monkeypatch.setattr(readiness, "CONSOLE_INTERVAL_S", 0)
    return made


async def test_the_first_line_of_the_run_that_matches_is_the_one(journal: Journal) -> None:
    guests = journal.others["guests"] = Journal("guests")
    guests.write("listening, an earlier run\n")
    begun = guests.write("booting\n").realtime
    guests.write("listening, another task\n", unit="solo5-task-other.service")
    for port in (80, 81):
        guests.write(f"listening on {port}\n")
    assert await readiness.first_line(UNIT, begun, "listening", "guests") == "listening on 80"
    assert [reader.closed for reader in guests.readers] == [True]


async def test_a_flood_leaves_others_their_turn(journal: Journal) -> None:
    for number in range(10 * readiness.BATCH_LINES):
        journal.write(f"{number}\n")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with Background(others()):
        turns = 0
        await readiness.first_line(UNIT, 0, f"^{10 * readiness.BATCH_LINES - 1}$")
    assert turns >= 9


async def test_one_who_waits_no_longer_closes_the_journal(journal: Journal) -> None:
    async with Background(readiness.first_line(UNIT, 0, "never")):
        pass
    assert [reader.closed for reader in journal.readers] == [True]


async def test_a_namespace_that_is_gone_is_reported() -> None:
    gone = Endpoint(protocol=Protocol.TCP, address=HERE, port=1, namespace="/run/netns/gone")
    assert "/run/netns/gone is no network namespace" in await readiness.failure(gone, 1)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
async def test_an_endpoint_answers_at_an_address_of_both_families(
    kind: socket.SocketKind, family: socket.AddressFamily
) -> None:
    protocol = Protocol.TCP if kind == socket.SOCK_STREAM else Protocol.UDP
    address = HERE if family == socket.AF_INET else IPv6Address("::1")
    with socket.socket(family, kind) as server:
        server.bind((str(address), 0))
        endpoint = Endpoint(protocol=protocol, address=address, port=server.getsockname()[1])
        if kind == socket.SOCK_STREAM:
            server.listen()
            assert await readiness.failure(endpoint, 5) == ""
        else:
            echoed = asyncio.get_running_loop().run_in_executor(None, lambda: server.sendto(*server.recvfrom(100)))
            assert await readiness.failure(endpoint, 5) == ""
            await echoed
    shown = "[::1]" if family == socket.AF_INET6 else str(HERE)
    assert str(endpoint) == f"{protocol} {shown}:{endpoint.port}"


async def test_a_guest_without_a_condition_has_to_run_for_a_second() -> None:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError, match="^it has to run for 1 s$"):
        await readiness.first_of(running().state, None, 0, never)


# -- patterns of a job: grep's, and searched in a process that the kernel ends in time -------------------------------


COSTLY = "(?:(?=.*+)){400}[^a]"
"""Possessive, hence without one step that libpcre2 counts: seconds for each line."""

COSTLY_LINE = b"a" * 4096


async def lines(*each: bytes) -> AsyncGenerator[Iterable[bytes], None]:
    yield each
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "pattern, line",
    [
        ("ready", b"we are ready now"),
        ("^ready$", b"ready"),
        ("(?i)READY", b"Ready"),
        (r"\d+(?= ms)", b"after 12 ms"),
        (r"(?<!not )ready", b"is ready"),
        (r"(\w)\1", b"hello"),
        ("a++b", b"aab"),
        ("é", "café".encode()),
        ("x", b"\0\xff\xfex"),
        ("--help", b"see --help"),
        ("^one two$", b"one\ntwo"),
    ],
)
async def test_a_pattern_is_searched_in_bytes(pattern: str, line: bytes) -> None:
    await readiness.check_pattern(pattern)
    found = await readiness.first_match(pattern, lines(b"", b"other", b"not", line, line + b" again"))
    assert found == line.replace(b"\n", b" ") + b"\n"


@pytest.mark.parametrize(
    "pattern, words",
    [
        ("(", "'\\(' cannot be searched for: missing closing parenthesis"),
        ("a**", "quantifier"),
        ("[z-a]", "range out of order"),
    ],
)
async def test_what_is_no_pattern_is_refused_in_greps_words(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await readiness.check_pattern(pattern)


@pytest.mark.timeout(120)  # other processes may have the processors for long
async def test_a_search_without_end_is_ended_after_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CPU_LIMIT_S", 1)
    monkeypatch.setattr(readiness, "LOWEST_PRIORITY", 0)
    with pytest.raises(InvalidRequestError, match="was ended after 1 s of processor time"):
        await readiness.first_match(COSTLY, lines(*[COSTLY_LINE] * 100))


async def test_a_search_that_exceeds_greps_own_limit_is_a_sentence() -> None:
    with pytest.raises(InvalidRequestError, match="exceeded PCRE's backtracking limit"):
        await readiness.first_match("(a+)+$", lines(COSTLY_LINE + b"!"))


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def test_a_search_under_way_has_no_privileges_and_is_killed_with_its_waiter() -> None:
    before = children()
    async with Background(readiness.first_match(COSTLY, lines(*[COSTLY_LINE] * 100))):
        while not (made := children() - before):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        [pid] = made
        while b"grep" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        assert {status["CapEff"].strip("0"), status["CapPrm"].strip("0")} == {""}
        assert os.geteuid() != 0 or status["Uid"].split() == ["65534"] * 4
        assert os.getpriority(os.PRIO_PROCESS, pid) == readiness.LOWEST_PRIORITY
    assert children() == before


async def test_a_reader_that_fails_ends_the_search() -> None:
    async def broken() -> AsyncGenerator[Iterable[bytes], None]:
        yield (b"line",)
        raise OSError("journal")

    with pytest.raises(OSError, match="journal"):
        await readiness.first_match("never", broken())


@pytest.mark.parametrize("program", ["GREP", "NICE", "PRLIMIT", "SETPRIV"])
async def test_a_missing_program_of_the_host_is_named(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, program, "/nonexistent/program")
    with pytest.raises(DependencyError, match="a console cannot be searched: .*/nonexistent/program.*: No such file"):
        await readiness.check_pattern("a")
