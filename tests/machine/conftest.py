"""Fixtures for tests that stand on a booted machine as root, with the package installed.

The ladder: `machine` (booted, healthy, and left as it was found) → `outside` (another host, joined by a cable) →
`run` (starts tasks, and removes them). Every test that uses a rung is also a test of its teardown: links, nftables,
leases, units, processes, mounts and files must be as before, and the journal must hold nothing of ours at warning or
above that the test did not announce.
"""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.machine import forked
from tests.support.nft_listing import settled

if TYPE_CHECKING:
    from tests.machine.consoles import Consoles
    from tests.machine.declared import Declarations

GUESTS = Path("/srv/guests")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
DISKS = Path("/var/lib/solo5/disks")
IS_EMULATED = os.environ.get("TEST_MACHINE") == "vm"
PATIENCE = 240.0 if IS_EMULATED else 60.0
"""Seconds that anything here may take; an emulated machine beside other tiers is 15 times slower, and more."""
IS_FORKED = platform.freedesktop_os_release().get("VERSION_ID") != "12"
"""Whether `solo5ctl` is forked (forked.py); on Debian 12 the tests execute the installed program, as its users do."""


def sh(*argv: str, timeout: float = PATIENCE, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, output kept apart and as text."""
    if IS_FORKED and argv[0] == "solo5ctl" and not options:
        return forked.solo5ctl(argv[1:], timeout)
    return subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        **options,
    )


def ok(*argv: str, **options: Any) -> str:
    """The output of a command that must succeed."""
    done = sh(*argv, **options)
    assert done.returncode == 0, f"{' '.join(argv)} → {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def eventually(claim: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait for something that is to become true by itself; asking has at most a third of the time."""
    begun = time.monotonic()
    end = begun + patience
    while not (holds := claim()) and (now := time.monotonic()) < end:
        time.sleep(min(max(0.05, 2 * (now - begun)), 0.5))
        begun = time.monotonic()
    assert holds, f"{what}: not within {patience} seconds"


def logged(text: str, *matches: str) -> None:
    """Wait until the journal has a text: a process's own may come after what PID 1 has written of its end."""
    eventually(lambda: text in ok("journalctl", "--quiet", "--boot", "--output=cat", *matches), f"it logs {text!r}")


def sync_journal() -> None:
    """Wait until journald has written what it has; one that is being restarted ends the wait with an error."""
    eventually(lambda: sh("journalctl", "--sync").returncode == 0, "journald writes what it has")


_DEAF = ("Transport endpoint is not connected", "Connection reset by peer", "Failed to connect to", "Broken pipe")
"""What systemctl says of PID 1 while that executes itself anew; systemctl does not ask again."""


def systemctl(*words: str) -> str:
    """PID 1's answer to what may be said twice, said again as long as it has no ear for anything."""
    end = time.monotonic() + PATIENCE
    while True:
        done = sh("systemctl", *words)
        if done.returncode == 0:
            return done.stdout
        deaf = any(word in done.stderr for word in _DEAF) and time.monotonic() < end
        assert deaf, f"systemctl {' '.join(words)} → {done.returncode}\n{done.stdout}{done.stderr}"
        time.sleep(0.05)


def unit_property(unit: str, name: str) -> str:
    return systemctl("show", "--property", name, "--value", unit).strip()


def exposure(unit: str) -> float:
    """What systemd-analyze(1) finds a unit to be exposed to, of 10."""
    verdict = ok("systemd-analyze", "security", "--no-pager", unit)
    return float(re.findall(r"Overall exposure level for \S+: ([0-9.]+)", verdict)[0])


def kill_main(unit: str) -> None:
    """kill -9 of a service that systemd starts again."""
    pid = unit_property(unit, "MainPID")
    assert pid != "0", f"{unit} does not run"
    ok("kill", "-KILL", pid)
    eventually(lambda: unit_property(unit, "MainPID") not in ("0", pid), f"{unit} is started again")


def remove_namespace(name: str) -> None:
    """End the journald of a journal namespace, and remove its files."""
    units = (f"systemd-journald@{name}.service", f"systemd-journald@{name}.socket")
    # First what syncs its files at its own end (systemd 257), which fails where journald is gone.
    sh("systemctl", "stop", f"systemd-journald-sync@{name}.service")
    ok("systemctl", "stop", *units, f"systemd-journald-varlink@{name}.socket")
    sh("systemctl", "reset-failed", f"systemd-journald-sync@{name}.service")
    for directory in Path("/var/log/journal").glob(f"*.{name}"):
        shutil.rmtree(directory)


def registered() -> dict[str, str]:
    """The tasks that have a user: the uid of each, and what it takes of the node."""
    file = Path("/run/solo5/users/registry")
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


@dataclass
class Machine:
    """The machine, and what is to be as before once a test is over."""

    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """Announce a journal line of ours at warning or above."""
        self.expected.append(pattern)

    def snapshot(self) -> dict[str, object]:
        """All that a task could leave behind, with as few programs as possible: it is read twice for each test."""
        loaded = _loaded()
        return {
            "links": sorted(name for _, name in socket.if_nameindex()),
            "namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
            "nft": settled(ok("nft", "--stateless", "list", "ruleset")),
            "units": sorted(filter(_is_kept, loaded)),
            "consoles": sorted(str(p) for p in Path("/run/solo5/relay").glob("*")),
            "descriptors": loaded.get("solo5-relay.service", "0"),
            "leases": sorted(
                str(p) for p in Path("/run/solo5/network").rglob("*") if p.is_file() and p.name != "repairs.json"
            ),
            "users": [*sorted(registered()), *sorted(str(p) for p in Path("/run/userdb").glob("[!.]*"))],
            "transient": sorted(p.name for p in Path("/run/systemd/transient").glob("solo5*")),
            "tenders": sorted(_tenders()),
            "forward": [file.read_text() for file in sorted(Path("/proc/sys/net/ipv4/conf").glob("*/forwarding"))],
            "mounts": sorted(_mounts()),
            "archives": sorted(map(str, Path("/run/solo5/memory").glob("*"))),
        }


KEPT_MOUNTS = ("/run/netns", "/run/solo5/memory")
"""Mount points of ip-netns(8) and of archives, each made at the first use."""


def _mounts() -> list[str]:
    points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [point for point in points if point not in KEPT_MOUNTS]


def _loaded() -> dict[str, str]:
    """Loaded units of ours, each with NFileDescriptorStore=; empty for one that is no service."""
    shown = systemctl("show", "--all", "--property=Id", "--property=NFileDescriptorStore", "solo5*")
    units = (dict(line.partition("=")[::2] for line in unit.splitlines()) for unit in shown.strip().split("\n\n"))
    return {unit["Id"]: unit.get("NFileDescriptorStore", "") for unit in units if unit}


def _is_kept(unit: str) -> bool:
    """Services may stay a while after they were last needed, slices for ever."""
    return unit not in ("solo5-networkd.service", "solo5-relay.service") and not unit.endswith(".slice")


def _tenders() -> Iterator[tuple[str, str]]:
    """The processes of tenders."""
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            name = (directory / "comm").read_text().strip()
            if re.match("solo5-(hvt|spt)", name):
                yield directory.name, name


@pytest.fixture(scope="session")
def booted() -> None:
    state = ok("systemctl", "is-system-running").strip()
    assert state == "running", sh("systemctl", "--failed").stdout
    if IS_EMULATED:
        _first_start()


def _first_start() -> None:
    """Start a guest with a network, and remove it.

    The first start reads Python's modules from the disk and has the kernel load some 20 of its own. On an emulated
    machine beside another tier that takes longer than the driver may take for a StartTask, which is no test's claim.
    """

    def starts() -> bool:
        sh("solo5ctl", "rm", "--force", "first")
        if sh("solo5ctl", "run", "--detach", "--name=first", str(GUESTS / "net.hvt")).returncode:
            return False
        ok("solo5ctl", "rm", "--force", "first")
        return True

    eventually(starts, "a guest with a network starts", 3 * PATIENCE)
    eventually(lambda: unit_property("solo5-networkd.service", "ActiveState") == "inactive", "solo5-networkd has left")


@pytest.fixture
def machine(booted: None) -> Iterator[Machine]:
    with left_as_found() as subject:
        yield subject


@contextmanager
def left_as_found(patience: float = PATIENCE) -> Iterator[Machine]:
    """The machine, which is as before some time after the block, and whose journal holds no surprise."""
    since = f"@{time.time():.6f}"
    subject = Machine()
    before = subject.snapshot()
    yield subject
    for disk in DISKS.glob("[!.]*"):
        eventually(partial(_is_removed, disk), f"{disk} is free")
    shutil.rmtree("/var/lib/solo5/mounts", ignore_errors=True)  # of file systems that the block has mounted
    _await_same(subject, before, patience)
    _no_surprise_in_journal(since, subject.expected)


def _is_removed(disk: Path) -> bool:
    return sh("solo5ctl", "disk", "rm", "--snapshots", disk.name).returncode == 0 or not disk.exists()


def _await_same(subject: Machine, before: dict[str, object], patience: float) -> None:
    end = time.monotonic() + patience
    while (after := subject.snapshot()) != before:
        changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        assert time.monotonic() < end, f"left behind (before, after): {changed}"
        time.sleep(0.05)


OURS = re.compile(r"solo5-(networkd|relay|network@.+)\.service")
UNIT_FIELDS = ("_SYSTEMD_UNIT", "UNIT", "OBJECT_SYSTEMD_UNIT")
HARMLESS = ["Got notification message from PID .*, but reception is disabled"]
"""PID 1 read the end of a service before the last message that the service had sent it."""


def _no_surprise_in_journal(since: str, expected: list[str]) -> None:
    """Our services' own lines at warning and above; a task's console is the guest's affair."""
    # Not by --unit=, of which a pattern has journalctl look through the units of the whole journal.
    words = ("--output=json", f"--output-fields=MESSAGE,{','.join(UNIT_FIELDS)}", "--priority=warning")
    entries = map(json.loads, ok("journalctl", "--quiet", "--no-pager", *words, f"--since={since}").splitlines())
    ours = [str(each["MESSAGE"]) for each in entries if any(OURS.fullmatch(str(each.get(of))) for of in UNIT_FIELDS)]
    surprises = [line for line in ours if not any(re.search(pattern, line) for pattern in (*HARMLESS, *expected))]
    assert not surprises, "in the journal, unannounced:\n" + "\n".join(surprises)


@dataclass(frozen=True)
class Outside:
    """Another host: a network namespace joined to the machine by a veth pair."""

    namespace: str = "outside"
    here: str = "192.0.2.1"
    there: str = "192.0.2.2"

    @property
    def within(self) -> tuple[str, ...]:
        """The words before a command that is executed there."""
        return "ip", "netns", "exec", self.namespace

    def sh(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return sh(*self.within, *argv, **options)

    def ok(self, *argv: str, **options: Any) -> str:
        return ok(*self.within, *argv, **options)

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.within, *argv], **options)

    def tcp(self, host: str, port: int) -> str:
        """An HTTP answer, from the outside."""
        return self.sh("curl", "--silent", "--max-time", "10", f"http://{host}:{port}/").stdout

    def is_refused(self, host: str, port: int) -> bool:
        """Whether a connection ends with an error, and not because its client has waited for too long."""
        done = self.sh("curl", "--silent", "--max-time", "30", f"http://{host}:{port}/")
        return done.returncode not in (0, 28)

    def udp(self, host: str, port: int, text: str) -> str:
        """The answer to a datagram, from the outside; empty where none comes."""
        return self.sh("python3", "-I", "-c", _UDP, host, str(port), text).stdout

    def sender(self, port: int) -> str:
        """The address that the next datagram for a port of this host comes from."""
        return heard(self.there, port, 20, *self.within)


_HEAR = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
s.settimeout(float(sys.argv[3]))
try:
    print(s.recvfrom(9999)[1][0], end="")
except TimeoutError:
    pass
"""


def heard(address: str, port: int, seconds: float, *before: str) -> str:
    """The sender of the next datagram that arrives there; empty where none comes in that time."""
    return ok(*before, "python3", "-I", "-c", _HEAR, address, str(port), str(seconds))


_UDP = """
import socket, sys
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
for _ in range(3):
    s.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
    try:
        print(s.recv(65536).decode(), end="")
        break
    except TimeoutError:
        pass
"""


def udp(host: str, port: int, text: str) -> str:
    """The answer to a datagram from the machine itself."""
    return sh("python3", "-I", "-c", _UDP, host, str(port), text).stdout


@pytest.fixture
def outside(machine: Machine) -> Iterator[Outside]:
    with cable(Outside()) as other:
        yield other


@contextmanager
def cable(other: Outside) -> Iterator[Outside]:
    ok("ip", "netns", "add", other.namespace)
    try:
        card = ("address", "52:54:00:12:34:56")  # as of a network card: a random one could be above those of taps
        ok("ip", "link", "add", "cable", *card, "type", "veth", "peer", "name", "eth0", "netns", other.namespace)
        ok("ip", "address", "add", f"{other.here}/24", "dev", "cable")
        ok("ip", "link", "set", "cable", "up")
        for line in (
            "link set lo up",
            "link set eth0 up",
            f"address add {other.there}/24 dev eth0",
            f"route add default via {other.here}",
        ):
            ok("ip", "-netns", other.namespace, *line.split())
        yield other
    finally:
        sh("ip", "link", "delete", "cable")
        ok("ip", "netns", "delete", other.namespace)


class Runner:
    """Starts tasks through `solo5ctl run --detach`, and removes them when the test is over."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, guest: str, *arguments: str, name: str | None = None, options: tuple[str, ...] = ()) -> str:
        """Start a guest in the background and return the task's name."""
        chosen = name or f"t-{guest.replace('.', '-')}-{len(self.names)}"
        self.names.append(chosen)
        ok("solo5ctl", "run", "--detach", "--name", chosen, *options, str(GUESTS / guest), *arguments)
        return chosen

    def fail(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A `solo5ctl run` that is expected to be refused."""
        return sh("solo5ctl", "run", *words)


@pytest.fixture
def run(machine: Machine) -> Iterator[Runner]:
    runner = Runner()
    yield runner
    if runner.names:
        sh("solo5ctl", "rm", "--force", *runner.names)


class Files:
    """Writes files that are removed when the test is over, with the directories that were made for them."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def __call__(self, path: Path | str, content: str | bytes = b"", mode: int = 0o644) -> Path:
        """Write a file, which may be there already; PID 1 has not read it yet."""
        file = Path(path)
        missing = [each for each in (file, *file.parents) if not each.exists() and each not in self._made]
        self._made += reversed(missing)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(mode)
        return file

    def remove(self) -> None:
        """Remove what is left of them, and have PID 1 read its units again if some are its."""
        for path in reversed(self._made):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if any("systemd" in path.parts for path in self._made):
            systemctl("daemon-reload")


@pytest.fixture
def place(machine: Machine) -> Iterator[Files]:
    files = Files()
    yield files
    files.remove()


@pytest.fixture
def newer(place: Files) -> str:
    """The guest net.spt as another image, which is there at the next boot."""
    return str(place("/srv/updates/newer.spt", (GUESTS / "net.spt").read_bytes() + b"\0newer"))


@pytest.fixture
def consoles(machine: Machine, tmp_path: Path) -> "Iterator[Consoles]":
    from tests.machine.consoles import Consoles  # which needs this module

    ok("journalctl", "--rotate")  # where a file reaches its maximum size, journald has a line twice (docs/consoles.md)
    subject = Consoles(tmp_path)
    yield subject
    subject.close()


@pytest.fixture
def declare(machine: Machine) -> "Iterator[Declarations]":
    from tests.machine.declared import declarations  # which needs this module

    with declarations() as made:
        yield made


def inspect(name: str) -> dict[str, Any]:
    """`solo5ctl inspect --json` of one task."""
    [task] = json.loads(ok("solo5ctl", "inspect", "--json", name))
    assert isinstance(task, dict)
    return task


def answers(port: int) -> bool:
    """Whether a published port answers by HTTP."""
    return sh("curl", "--silent", "--max-time", "2", f"http://127.0.0.1:{port}/").returncode == 0


def given(path: Path, content: bytes = bytes(4096)) -> Path:
    """Make a disk that root gives to tasks."""
    path.write_bytes(content)
    shutil.chown(path, "solo5")
    return path


def lease(name: str, nic: str = "service") -> dict[str, Any]:
    """A NIC of a task."""
    return next(each for each in inspect(name)["nics"] if each["nic"] == nic)


def address(name: str, nic: str = "service") -> str:
    """The IPv4 address of a NIC of a task."""
    return str(lease(name, nic)["ipv4"]).partition("/")[0]


def row(name: str) -> str:
    """The line of a task in `solo5ctl ps`; empty where there is none."""
    return next((line for line in ok("solo5ctl", "ps").splitlines() if line.startswith(f"{name} ")), "")


def console(name: str) -> str:
    return ok("solo5ctl", "logs", name)


def over(name: str) -> str:
    """Wait until a task has ended, and return its console."""
    ok("solo5ctl", "wait", name)
    return console(name)


def says(name: str, text: str) -> None:
    """Wait until the guest's console holds a text."""
    eventually(lambda: text in console(name), f"{name} says {text!r}")
