"""Tasks that sleep without packets: real guests, PID 1's own signals, and what systemd's tools do with a sleeper."""

import re
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Machine,
    Outside,
    Runner,
    address,
    eventually,
    inspect,
    ok,
    row,
    sh,
    udp,
    unit_property,
)
from tests.machine.declared import Declarations
from tests.machine.test_limits import MIB, count
from tests.machine.test_network import GATEWAY, IPV4, web

REQUESTED_AGAIN = ("nstat", "-asz", "TcpExtTCPSynRetrans")
"""How often a client has sent a request for a connection again."""


def process_state(name: str) -> str:
    """Return the state of a task's tender: `T` is stopped (proc_pid_stat(5))."""
    return Path(f"/proc/{inspect(name)['pid']}/stat").read_text().rpartition(")")[2].split()[0]


def asleep(name: str) -> bool:
    return "asleep_since" in inspect(name)


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_a_guest_sleeps_and_the_first_request_wakes_it(run: Runner, outside: Outside, target: str) -> None:
    task = web(run, target=target, options=("-p", "8080:80", "--idle", "5s"))
    eventually(lambda: asleep(task), "it falls asleep")
    assert process_state(task) == "T"
    assert " Asleep " in row(task)
    assert inspect(task)["phase"] == "running"
    before = outside.ok(*REQUESTED_AGAIN)
    assert outside.tcp(outside.here, 8080)
    assert outside.ok(*REQUESTED_AGAIN) == before, "the first packet has come"
    assert process_state(task) != "T"
    eventually(lambda: not asleep(task), "its record follows")
    assert " Up " in row(task)
    log = ok("journalctl", "--output=cat", f"OBJECT_SYSTEMD_UNIT={inspect(task)['unit']}")
    assert f"task {task} sleeps until its next packet" in log
    assert f"TCP {outside.there}:" in log


def test_by_hand(run: Runner) -> None:
    task = web(run)
    assert ok("solo5ctl", "sleep", task) == f"{task}\n"
    ok("solo5ctl", "sleep", task)
    assert (asleep(task), process_state(task)) == (True, "T")
    assert ok("solo5ctl", "wake", task) == f"{task}\n"
    ok("solo5ctl", "wake", task)
    assert (asleep(task), process_state(task) == "T") == (False, False)


ENDS = {
    ("solo5ctl", "stop"): ("stopped", 15),
    ("solo5ctl", "stop", "--signal", "INT"): ("stopped", 2),
    ("solo5ctl", "kill", "--signal", "TERM"): ("stopped", 15),
    ("solo5ctl", "kill", "--signal", "KILL"): ("killed", 9),
}


def test_a_task_that_sleeps_is_stopped_at_once(run: Runner) -> None:
    tasks = {end: web(run) for end in ENDS}
    ok("solo5ctl", "sleep", *tasks.values())
    for end, task in tasks.items():
        ok(*end, task)
        ok("solo5ctl", "wait", task)
        outcome = inspect(task)["outcome"]
        assert (outcome["ending"], outcome["signal"]) == ENDS[end], f"{end}: not by the SIGKILL after its time"


def test_a_declared_task_sleeps_through_a_daemon_reload(declare: Declarations) -> None:
    unit = declare("resting", f"Argument={IPV4}\nArgument={GATEWAY}\nIdleSec=5s")
    ok("systemctl", "start", unit)
    eventually(lambda: asleep("resting"), "it falls asleep")
    ok("systemctl", "daemon-reload")
    assert asleep("resting")
    assert udp(address("resting"), 7, "declared") == "declared"
    ok("systemctl", "stop", unit)


def test_a_declared_sleeper_is_updated_and_rolled_back(declare: Declarations) -> None:
    ports = "Publish=8080:80\nPublish=7007:7/udp"
    unit = declare("resting", f"{ports}\nArgument={IPV4}\nArgument={GATEWAY}\nWatch=0\nDrain=1s")
    ok("systemctl", "start", unit)
    for words in (["update", "resting", str(GUESTS / "net.hvt")], ["rollback", "resting"]):
        eventually(lambda: sh("curl", "--silent", "http://127.0.0.1:8080/").returncode == 0, "it answers")
        ok("solo5ctl", "sleep", "resting")
        ok("solo5ctl", *words)
        assert inspect("resting")["tender"] == ("hvt" if "update" in words else "spt")
        assert not asleep("resting")
    assert ok("curl", "--silent", "http://127.0.0.1:8080/")
    # The end of the guest beside it has the task's network attached again: its record was that of one awake.
    ok("solo5ctl", "sleep", "resting")
    late = ("--ready=console:^never$", "--timeout=1s", "--watch=0", "--drain=1s")
    assert "was not ready within 1 s" in sh("solo5ctl", "update", "resting", str(GUESTS / "net.spt"), *late).stderr
    assert asleep("resting") == (process_state("resting") == "T")
    assert udp("127.0.0.1", 7007, "still there") == "still there"
    ok("systemctl", "stop", unit)


# --- in the virtual machine: its clock can be set, and it has swap ------------------------------------------------

HOUR = 3600


@pytest.fixture
def leap(machine: Machine) -> Iterator[Callable[[int], None]]:
    """Set the clock by some seconds; it is right again after the test.

    It is CLOCK_REALTIME. Monotonic time does not jump: no hour of timers passes (TCP, conntrack, the guest's own).
    """
    real, monotonic = time.time(), time.monotonic()

    def leap(seconds: int) -> None:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)

    try:
        yield leap
    finally:
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - monotonic)


_TALK = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
for line in sys.stdin.buffer:
    s.sendall(line)
    back = b""
    while len(back) < len(line):
        more = s.recv(4096)
        if not more:
            sys.exit("the connection has ended")
        back += more
    sys.stdout.buffer.write(back)
    sys.stdout.flush()
s.shutdown(socket.SHUT_WR)
sys.stdout.buffer.write(s.recv(4096) + b"end\\n")
"""
"""A client of an echo: all lines of its input by one connection, and at their end what comes in addition, and `end`."""


class Talk:
    """The client, and the lines that it has sent."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._sent = 0

    def go_on(self, lines: int) -> None:
        """Have further lines sent, each of them another one, and find that each comes back whole."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for number in range(self._sent, self._sent + lines):
            line = f"{number} ".encode() * 80 + b"\n"
            self._process.stdin.write(line)
            self._process.stdin.flush()
            assert self._process.stdout.readline() == line
        self._sent += lines

    def end(self) -> bytes:
        """End the connection; return what has come in addition, and `end`."""
        return self._process.communicate(timeout=120)[0]


@contextmanager
def talk(outside: Outside, host: str, port: int) -> Iterator[Talk]:
    words = ("python3", "-I", "-c", _TALK, host, str(port))
    with outside.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Talk(process)
        finally:
            process.kill()


def flow(port: int) -> str:
    """Return the conntrack entry of the one connection to a published port, without what a packet changes."""
    listed = ok("conntrack", "-L", "-p", "tcp", "--orig-port-dst", str(port), "-o", "id")
    [entry] = [line for line in listed.splitlines() if "ESTABLISHED" in line]
    return " ".join(re.findall(r"\b(?:src|dst|sport|dport|id)=\S+", entry))


def put_to_sleep(task: str) -> None:
    """As `solo5ctl sleep`, which takes seconds to start in an emulated machine."""
    ok("busctl", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1", "Sleep", "s", task)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def sleeps_of(unit: str) -> list[str]:
    """Return for how many seconds a task slept each time, as its log says."""
    return re.findall(r" is awake after (\S+) s asleep ", ok("journalctl", "-o", "cat", f"OBJECT_SYSTEMD_UNIT={unit}"))


@pytest.mark.vm  # the clock of a container is its host's
def test_a_connection_continues_after_an_hour_asleep(
    run: Runner, outside: Outside, leap: Callable[[int], None]
) -> None:
    """No byte is lost or comes twice; and a clock that is set back leaves no time that is negative."""
    task = run("net.spt", IPV4, GATEWAY, options=("-p", "7007:7/tcp"))
    info, service = inspect(task), unit_property("solo5-networkd.service", "MainPID")
    [nic] = info["nics"]
    with talk(outside, outside.here, 7007) as client:
        client.go_on(20)
        entry = flow(7007)
        for times, (seconds, said) in enumerate(((HOUR, "1 hour"), (-2 * HOUR, "less than a second")), 1):
            put_to_sleep(task)
            leap(seconds)
            shown = row(task)
            assert f" Asleep {said} " in shown
            assert f" {nic['ipv4'].partition('/')[0]} " in shown
            assert stopped(info["pid"])
            client.go_on(20)
            assert not stopped(info["pid"])
            eventually(lambda times=times: len(sleeps_of(info["unit"])) == times, "its record follows")  # type: ignore[misc]
            assert flow(7007) == entry
        assert client.end() == b"end\n"
    short, long = sorted(map(int, sleeps_of(info["unit"])))
    assert (short, HOUR <= long < HOUR + 200) == (0, True)
    metrics = ok("solo5ctl", "metrics")
    values = [
        float(value)
        for name in ("wakes", "slept_seconds")
        for value in re.findall(rf'^solo5_task_{name}_total{{.*task="{task}".*}} (\S+)$', metrics, re.MULTILINE)
    ]
    assert (values[0], abs(values[1] - long) <= 1) == (2, True)
    assert unit_property("solo5-networkd.service", "MainPID") == service


FILL = 10
PAGES = FILL * MIB // 4096
ROUNDS = 6


@pytest.fixture
def swap(machine: Machine) -> Iterator[None]:
    """A swap file: written in the background, as zram is not, so that pages are still in memory when they are in it."""
    file = "/var/tmp/swap"
    ok("fallocate", "--length=64M", file)
    try:
        ok("chmod", "600", file)
        ok("mkswap", file)
        ok("swapon", file)
        yield
        ok("swapoff", file)
    finally:
        Path(file).unlink()


def first_byte(host: str) -> float:
    """Return how long a request of HTTP waits for the first byte of its answer, in milliseconds."""
    begun = time.monotonic()
    with socket.create_connection((host, 80), 60) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(1) == b"H"
        return (time.monotonic() - begun) * 1000


def intact_pages(host: str) -> int:
    """Have the guest read all that it has filled."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        client.connect((host, 9))
        client.send(b"how many are intact?")
        return int(client.recv(100))


@pytest.mark.vm  # a container may lack the controllers of cgroup v2, and its swap is its host's
def test_the_memory_of_a_task_that_sleeps_is_swapped_out(
    swap: None, run: Runner, record_property: Callable[[str, object], None]
) -> None:
    """All of the guest's: what remains is the kernel's own for the cgroup, 4 % as this is written."""
    swapped = ("-m", "32M", "--property", "MemorySwapMax=infinity")
    task = run("net.hvt", IPV4, GATEWAY, f"--fill={FILL}", options=swapped)
    info = inspect(task)
    host = str(info["nics"][0]["ipv4"]).partition("/")[0]
    group = Path("/sys/fs/cgroup" + unit_property(info["unit"], "ControlGroup"))

    def charged() -> int:
        return int((group / "memory.current").read_text())

    def resident() -> int:
        return sum(count((group / "memory.stat").read_text(), key) for key in ("anon", "shmem", "swapcached"))

    eventually(lambda: sh("ping", "-c1", "-W1", host).returncode == 0, "it answers a ping")
    before, left, late = charged(), list[int](), list[float]()
    assert resident() > FILL * MIB
    early = [first_byte(host) for _ in range(ROUNDS)]
    for _ in range(ROUNDS):
        put_to_sleep(task)
        eventually(lambda: charged() <= before / 15 and resident() <= before / 100, "its memory is swapped out", 30)
        left.append(charged())
        late.append(first_byte(host))
    assert intact_pages(host) == PAGES
    median, usual = statistics.median(late), statistics.median(early)
    figures = f"{max(left) / before:.1%} of {before / MIB:.1f} MiB; first byte {median:.0f}, at most {max(late):.0f} ms"
    record_property("swapped", f"{figures}; awake {usual:.0f} ms")
    print(f"{figures}; awake {usual:.0f}, at most {max(early):.0f} ms")
    assert median < 100 * usual, "without a packet that is sent again, which takes a second"
