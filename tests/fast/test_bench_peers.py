"""The comparison with other ways to run tasks: what needs no machine."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from tests.bench import processes
from tests.bench.figures import Spread, spread
from tests.bench.peers import compare, shell
from tests.bench.peers.subjects import MissingError, Peer, Subject
from tests.bench.plots import OURS

DRY_RUN = """\
# solo5-task-web.service
Description=Solo5 unikernel net.spt (spt)
ExecStart=/usr/local/bin/solo5-spt --net:service=s5-4nedjpzhb4br --mem=24 -- /images/ba36 --ipv4=10.153.0.150/24
Requires=solo5-network@web.service
User=63021
NetworkNamespacePath=/run/netns/solo5-web
NoNewPrivileges=yes
RestrictNamespaces=0x4000000
IPAddressDeny=any

# command line
/usr/local/bin/solo5-spt --net:service=s5-4nedjpzhb4br --mem=24 -- /images/ba36 --ipv4=10.153.0.150/24

# leases
service on default: 10.153.0.150/24
"""


def test_systemd_run_has_every_setting_of_a_task_but_its_names_user_and_namespace() -> None:
    lines = ["NoNewPrivileges=yes", "RestrictNamespaces=uts", "IPAddressDeny=any"]
    assert shell.confinement(DRY_RUN) == (lines, "/images/ba36")


def test_the_spread_of_many_values_leaves_out_a_twentieth_at_each_end() -> None:
    assert spread(range(100)) == Spread(median=49.5, low=5, high=95)
    assert spread([3.0, 1.0, 2.0]) == Spread(median=2, low=1, high=3)


@contextmanager
def echo(address: str) -> Iterator[int]:
    """Yield a port that answers the tenth datagram, and no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))

        def serve() -> None:
            for _ in range(9):
                server.recv(64)
            server.sendto(*server.recvfrom(64))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_first_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "ADDRESS", "127.0.0.1")
    with echo("127.0.0.1") as port:
        shell.answered(port)
    monkeypatch.setattr(shell, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1:\d+ does not answer"):
        shell.answered(port)


async def test_a_command_that_fails_is_an_error_with_its_message() -> None:
    tasks = shell.Shell(lambda port: ("sh", "-c", f"echo no room for {port} >&2; exit 3"), lambda _: ("true",))
    with pytest.raises(RuntimeError, match="exits with 3: no room for 30000"):
        await tasks.start()


class Steady:
    """Tasks whose times are known."""

    def __init__(self) -> None:
        self.running = 0
        self.crowd = 0

    async def start(self, until: str = "") -> float:
        self.running += 1
        return 20.0 if until else 10.0

    async def stop(self) -> float:
        self.running -= 1
        return 5.0

    async def pairs(self, count: int) -> float:
        return count / 8

    async def grow(self, count: int) -> None:
        self.crowd = count

    async def clear(self) -> None:
        self.crowd = 0

    def harness(self) -> set[int]:
        return set()


def peer(name: str, subject: Subject | None = None, *, missing: str = "") -> Peer:
    def prepare() -> None:
        if missing:
            raise MissingError(missing)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Subject]:
        if subject is None:
            raise RuntimeError("start: rpc error:\n  cpu.max: no such file")
        yield subject

    return Peer(name=name, caller="Nomad", prepare=prepare, opened=opened)


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> compare.Comparison:
    monkeypatch.setattr(compare, "SETTLE_S", 0)
    monkeypatch.setattr(processes, "of_machine", lambda: 0)
    monkeypatch.setattr(processes, "end_services", lambda: None)
    comparing = compare.Comparing(turns=2, crowds=(1, 100))
    peers = [peer(OURS, Steady()), peer("exec2"), peer("podman", missing="/x/nomad-driver-podman is missing")]
    return asyncio.run(comparing.everything(peers))


def test_a_peer_that_is_missing_or_fails_is_left_out_with_the_reason(comparison: compare.Comparison) -> None:
    assert {row.peer for row in comparison.rows} == {OURS}
    assert comparison.missing == {
        "exec2": "start: rpc error: cpu.max: no such file",
        "podman": "/x/nomad-driver-podman is missing",
    }
    assert "left out: podman: /x/nomad-driver-podman is missing" in compare.table(comparison)


def test_a_row_has_medians_with_their_spread(comparison: compare.Comparison) -> None:
    few, many = comparison.rows
    assert (few.tasks, many.tasks) == (1, 100)
    assert few.start == Spread(median=10, low=10, high=10)
    assert few.answer.median == 20
    assert few.pairs.median == 8
    row = compare.table(comparison).splitlines()[2]
    assert row.startswith("| Nomad | solo5 | 1 | 10 (10–10) | 20 (20–20) | 5.0 (5.0–5.0) | 8.0 (8.0–8.0) |")
