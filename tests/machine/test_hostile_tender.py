"""A tender that a guest has taken over gets nothing of another task, of the host or of root's."""

import json
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machine import records
from tests.machine.conftest import (
    GUESTS,
    Files,
    Outside,
    Runner,
    address,
    console,
    eventually,
    given,
    inspect,
    ok,
    remove_namespace,
    says,
    sh,
)
from tests.machine.declared import Declarations
from tests.machine.test_confinement import files_of
from tests.machine.test_joined import ON_LAN, POOL, SETTINGS, answers, lan
from tests.machine.test_network import web

__all__ = ["lan"]

PROGRAMS = Path("/usr/local/bin")
HOSTILE = PROGRAMS / "solo5-hostile"
ATTACKS = 41
SHORT_OF_A_LEASE_S = 30
TENDER = Path("/srv/hostile-tenders/solo5-spt")
OF_THE_NAMESPACE = "/run/systemd/journal/"
"""Sockets and streams of the task's own journal namespace, which PID 1 mounts."""

OF_ANY_USER = (
    *(
        "got place",
        "got terminal",
        "got namespace",
        "got code ",
        "got group ",
        "got growth ",  # of its own disk: a scope has no LimitFSIZE=
    ),
    *(
        "got file /run/solo5/network",
        "got file /run/solo5/declared",  # names, as of units
        "got file /run/solo5/tenders",
        "got file /run/solo5/root",  # empty files and directories
        "got file /run/solo5/settings",
        "got file /sys",
        "got file /proc/sys",
        "got file /proc/net",
    ),
)
"""What a scope has as every user of the host: PID 1 confines none."""

LAUNCHER = Path("/usr/libexec/solo5-confine")

OWN_RUN = "got place /run"
"""Of its own root, where systemd 252 mounts an empty one that it can write."""

OF_NO_LAUNCHER = {
    *("request", "command", "lease", "listener", "personality", "socket", "address", "owner", "huge", "merged"),
    "checksum",
}
"""What a service has where solo5-confine is not installed: the arguments of calls that tenders need."""


@dataclass(frozen=True)
class Scene:
    """Neighbours: one that runs its guest, and one that has not opened its tap."""

    names: tuple[str, str]
    paths: tuple[str, ...]


@pytest.fixture
def hostile(request: pytest.FixtureRequest, place: Files, run: Runner) -> Iterator[None]:
    """Every spt image is run by a hostile tender, with the sockets of a journal namespace in its root."""
    place(TENDER, (PROGRAMS / getattr(request, "param", "solo5-hostile")).read_bytes(), 0o755)
    text = f'tender_paths = ["{TENDER.parent}", "/usr/local/bin"]\nlog_namespace = "hostile"\n'
    place("/etc/solo5/hostile.toml", text)
    yield
    remove_namespace("hostile")


def disk(path: Path) -> Path:
    given(path).chmod(0o600)
    return path


@pytest.fixture
def scene(hostile: None, run: Runner, tmp_path: Path) -> Scene:
    tmp_path.chmod(0o755)
    own = disk(tmp_path / "neighbour.img")
    running = run("netdisk.hvt", options=("--block", f"storage={own}"))
    says(running, "sector 0")
    idle = run("netdisk.spt", "victim", options=("--block", f"storage={disk(tmp_path / 'idle.img')}"))
    says(idle, "waiting")
    tap = inspect(idle)["nics"][0]["tap"]
    carrier = ok("ip", "netns", "exec", f"solo5-{idle}", "cat", f"/sys/class/net/{tap}/carrier").strip()
    assert carrier == "0", "a free tap, which is the one to take"
    fifo = tmp_path / "fifo"
    ok("mkfifo", "-m", "600", str(fifo))
    paths = [
        *(str(own), str(tmp_path / "idle.img"), str(fifo), "/var/lib/solo5/images", "/etc/shadow", "/run/solo5/users"),
        *(str(path) for path in Path("/var/lib/solo5/images").iterdir() if path.name != "manifests"),
        *(str(path) for path in Path("/run/solo5").rglob("*")),
        *("/sys/fs/cgroup", "/sys/class/net", "/sys/devices", "/sys/kernel", "/proc/sys", "/proc/net"),
        "/run/solo5/users/registry",
        *(f"/proc/{inspect(running)['pid']}/{file}" for file in ("mem", "environ", "root/run/solo5-disks/storage")),
    ]
    return Scene(names=(running, idle), paths=tuple(paths))


def verdict(text: str) -> tuple[list[str], list[str]]:
    """What was got, and how each attack ended."""
    lines = text.splitlines()
    return [line for line in lines if line.startswith("got ")], [line for line in lines if line.startswith("tried ")]


def uids(name: str) -> set[str]:
    status = Path(f"/proc/{inspect(name)['pid']}/status").read_text()
    return {number for key in ("Uid", "Gid") for number in re.findall(rf"^{key}:\s+(.*)$", status, re.M)[0].split()}


def writable_files(name: str) -> set[tuple[int, int]]:
    """The regular files that the tender has open for writing."""
    found = set()
    for fd in Path(f"/proc/{inspect(name)['pid']}/fd").iterdir():
        flags = int(re.findall(r"^flags:\s+(\d+)$", (fd.parents[1] / "fdinfo" / fd.name).read_text(), re.M)[0], 8)
        status = fd.stat()
        if flags & 3 and stat.S_ISREG(status.st_mode):
            found.add((status.st_dev, status.st_ino))
    return found


@pytest.mark.parametrize("hostile", ["solo5-hostile", "solo5-hostile-dynamic"], indirect=True)
def test_hostile_tender_of_a_service_gets_nothing(scene: Scene, run: Runner, tmp_path: Path) -> None:
    own = disk(tmp_path / "hostile.img")
    attacker = run("netdisk.spt", *scene.paths, options=("--block", f"storage={own}"))
    says(attacker, "waiting")
    got, tried = verdict(console(attacker))
    assert len(tried) == ATTACKS
    assert f"opened {inspect(attacker)['nics'][0]['tap']} with offloads" in console(attacker)
    image = f"/var/lib/solo5/images/{inspect(attacker)['image_sha256']}"
    own_files = {f"got file {image}", "got file /var/lib/solo5/images"}  # a directory with nothing else
    libraries = [word for word in sh("ldd", str(TENDER)).stdout.split() if word.startswith("/")]
    version = ok("systemctl", "--version")
    release = int(version.split()[1])
    groups = [line for line in got if line.startswith("got group ")]
    assert bool(groups) == (release < 257), "a namespace of cgroups is for a systemd that has it"
    assert {*got} - own_files - {*groups} == set()
    seen = files_of(inspect(attacker)["pid"])
    assert {path for path in seen if not path.startswith(OF_THE_NAMESPACE)} == {
        *libraries,
        *(str(TENDER), str(LAUNCHER), image, "/run/solo5-disks/storage"),
    }
    numbers = [uids(name) for name in (*scene.names, attacker)]
    assert all(len(each) == 1 for each in numbers), "a group of its own, too"
    assert len(set.union(*numbers)) == 3
    assert own.stat().st_uid == int(next(iter(numbers[2])))
    assert own.stat().st_size == 4096
    assert own.stat().st_blocks * 512 <= 4096, "nor space beyond its end"
    assert not writable_files(attacker) & writable_files(scene.names[0])


def test_hostile_tender_of_a_scope_gets_nothing_of_a_task(scene: Scene, tmp_path: Path) -> None:
    block = ("--block", f"storage={disk(tmp_path / 'hostile.img')}")
    with scope(tmp_path / "log", "waiting", *block, f"{GUESTS}/netdisk.spt", *scene.paths) as text:
        got, tried = verdict(text)
    assert len(tried) == ATTACKS
    got = [line for line in got if not line.startswith(OF_ANY_USER)]
    assert not got, got


def test_a_scope_that_gives_up_its_locks_keeps_its_disk_to_itself(hostile: None, run: Runner, tmp_path: Path) -> None:
    """Of a scope, no other process has the locks. The next task would share the disk with what is still there."""
    tmp_path.chmod(0o755)
    own = disk(tmp_path / "own.img")
    block = ("--block", f"storage={own}")
    with scope(tmp_path / "log", "unlocked", *block, f"{GUESTS}/netdisk.spt", "unlock"):
        refused = run.fail("--detach", "--name", "t-next", *block, f"{GUESTS}/netdisk.hvt")
        assert refused.returncode == 125
        assert f"'{own}' is in use by another task" in refused.stderr
    says(run("netdisk.hvt", options=block), "sector 0")


@pytest.fixture
def no_launcher() -> Iterator[None]:
    """Make a machine where solo5-confine is not installed."""
    away = LAUNCHER.rename("/var/tmp/solo5-confine")
    yield
    shutil.move(away, LAUNCHER)


def test_without_the_launcher_arguments_are_open_and_nothing_else_is(
    no_launcher: None, scene: Scene, run: Runner, tmp_path: Path
) -> None:
    """So the launcher is what closes them."""
    own = disk(tmp_path / "hostile.img")
    attacker = run("netdisk.spt", *scene.paths, options=("--block", f"storage={own}"))
    says(attacker, "waiting")
    got, _ = verdict(console(attacker))
    assert {line.split()[1] for line in got if line != OWN_RUN} - {"file", "group", "port"} == OF_NO_LAUNCHER


@pytest.mark.parametrize("launcher", [True, False])
def test_no_space_beyond_the_end_of_a_disk_outlives_its_task(
    hostile: None, run: Runner, request: pytest.FixtureRequest, *, launcher: bool
) -> None:
    """With the launcher there never is any."""
    if not launcher:
        request.getfixturevalue("no_launcher")
    where = Path("/srv/space")
    with records.reflinks(where):
        where.chmod(0o755)
        own = disk(where / "hostile.img")
        attacker = run("netdisk.spt", options=("--block", f"storage={own}"))
        says(attacker, "waiting")
        assert ("got space" in console(attacker)) != launcher
        assert (own.stat().st_blocks * 512 > 1 << 20) != launcher
        ok("solo5ctl", "rm", "--force", attacker)
        assert own.stat().st_size == 4096
        assert own.stat().st_blocks * 512 == 4096
    where.rmdir()


def test_the_disk_of_a_declared_task_becomes_no_larger(hostile: None, declare: Declarations, tmp_path: Path) -> None:
    """Its unit file is written before its disks are known, and has no LimitFSIZE=."""
    tmp_path.chmod(0o755)
    own = disk(tmp_path / "own.img")
    ok("systemctl", "start", declare("grower", f"Block=storage={own}", image="netdisk.spt"))
    says("grower", "waiting")
    assert not [line for line in verdict(console("grower"))[0] if line.startswith("got growth")]
    assert own.stat().st_size == 4096


def test_a_leased_disk_is_refused_at_once(no_launcher: None, hostile: None, run: Runner) -> None:
    """The kernel ends the lease in 45 seconds, for which a snapshot would wait."""
    ok("solo5ctl", "disk", "create", "leased", "1M")
    attacker = run("netdisk.spt", "lease", options=("--block", "storage=disk:leased"))
    says(attacker, "leased")
    begun = time.monotonic()
    done = sh("solo5ctl", "disk", "snapshot", "leased", "--as", "before")
    assert time.monotonic() - begun < SHORT_OF_A_LEASE_S
    assert done.returncode == 125
    assert "leased' has a file lease (F_SETLEASE) of another process, such as its tender" in done.stderr
    ok("solo5ctl", "rm", "--force", attacker)
    ok("solo5ctl", "disk", "rm", "leased")


def test_a_tender_has_no_other_file_behind_its_loop_device(
    hostile: None, run: Runner, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It would detach its own, and wait until root attaches another file to the number."""
    with records.attached(disk(tmp_path / "own.img")) as device:
        attacker = run("netdisk.spt", "loop", options=("--block", f"storage={device}"))
        says(attacker, "waiting")
        assert "got loop" not in console(attacker)
        assert ok("losetup", "--noheadings", "--output", "BACK-FILE", device).strip() == str(tmp_path / "own.img")
        ok("solo5ctl", "rm", "--force", attacker)
        request.getfixturevalue("no_launcher")
        done = sh("solo5ctl", "run", "--block", f"storage={device}", f"{GUESTS}/netdisk.spt")
        assert done.returncode == 125
        assert f"{device!r} is a loop device" in done.stderr


@contextmanager
def scope(log: Path, until: str, *words: str) -> Iterator[str]:
    """A tender in a scope, whose console is in a file; yields it when it has a text."""
    with log.open("wb") as output:
        tender = subprocess.Popen(["solo5ctl", "run", "--scope", "--name", "t-scope", *words], stdout=output)
    try:
        eventually(lambda: until in log.read_text(), "it has done what it does")
        yield log.read_text()
    finally:
        tender.kill()
        tender.wait()
        ok("solo5ctl", "gc")  # nothing is left of a scope that has ended but its user


@contextmanager
def attacking(run: Runner, kind: str, log: Path, mac: str, *options: str) -> Iterator[str]:
    """A hostile tender that has given its tap a MAC address and opened all sockets that it gets; yields its console."""
    if kind == "service":
        attacker = run("net.spt", "network", mac, options=options)
        says(attacker, "waiting")
        yield console(attacker)
        ok("solo5ctl", "rm", "--force", attacker)
    else:
        with scope(log, "waiting", *options, f"{GUESTS}/net.spt", "network", mac) as text:
            yield text


def network_of_host() -> tuple[list[str], int]:
    """What sockets in the host's network namespace have: ports of UDP, and memberships of the attack's group."""
    ports = [line.split()[1] for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sorted(ports), Path("/proc/net/igmp").read_text().count("030201EF")


def tracked() -> int:
    return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())


@pytest.mark.parametrize("kind", ["service", "scope"])
def test_hostile_tender_gets_nothing_of_its_network(
    no_launcher: None, hostile: None, run: Runner, tmp_path: Path, kind: str
) -> None:
    """It has a neighbour's MAC address at its tap, a thousand sockets that send to each other, and memberships."""
    neighbour = web(run)
    [nic] = inspect(neighbour)["nics"]

    def entries() -> list[str]:
        return [line for line in ok("bridge", "fdb", "show", "br", "solo5-default").splitlines() if nic["mac"] in line]

    at_first, before, number = entries(), network_of_host(), tracked()
    with attacking(run, kind, tmp_path / "log", nic["mac"]) as text:
        assert "network: MAC set" in text
        assert ", 0 datagrams, " in text
        assert entries() == at_first
        assert network_of_host() == before
        assert tracked() - number < 100
        assert sh("ping", "-c3", "-W1", address(neighbour)).returncode == 0


@pytest.mark.parametrize(
    ("kind", "whose"),
    [("service", "the router's"), ("scope", "the router's"), ("scope", "a lower one than the bridge's")],
)
def test_hostile_tender_on_a_lan_moves_neither_router_nor_host(
    no_launcher: None, hostile: None, lan: Outside, place: Files, run: Runner, tmp_path: Path, kind: str, whose: str
) -> None:
    router = json.loads(lan.sh("ip", "-j", "link", "show", "eth0").stdout)[0]["address"]
    mac = router if whose == "the router's" else "02:00:00:00:00:01"
    place(SETTINGS, f'[network.lan]\njoin = "br0"\n{POOL}')
    answers(lan, lan.here, "the LAN reaches the host")
    own = json.loads(ok("ip", "-j", "link", "show", "br0"))[0]["address"]
    with attacking(run, kind, tmp_path / "log", mac, *ON_LAN) as text:
        assert "network: MAC set" in text
        answers(lan, lan.here, "the LAN reaches the host")
        assert json.loads(ok("ip", "-j", "link", "show", "br0"))[0]["address"] == own
        learned = [line for line in ok("bridge", "fdb", "show", "br", "br0").splitlines() if mac in line]
        assert not [line for line in learned if "s5-" in line]


def test_the_attacks_are_attacks(scene: Scene, tmp_path: Path) -> None:
    """The same program, as root: what it would get is there to be got."""
    option = f"--block:storage={disk(tmp_path / 'own.img')}"
    done = subprocess.Popen([HOSTILE, option, "--", "image", *scene.paths], stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    text = ""
    while not text.endswith("\nwaiting\n"):
        text += done.stdout.readline()
    done.kill()
    done.communicate()
    got = {line.split()[1] for line in verdict(text)[0]}
    assert got == {
        *("signal", "limits", "trace", "memory", "process", "tap", "link", "file", "writable", "datagram", "port"),
        *("raw", "socket", "place", "terminal", "root", "namespace", "group", "code", "growth"),
        *("request", "command", "space", "lease", "listener", "personality", "huge", "merged", "ring"),
        *("ephemeral", "membership", "message"),
        *("program", "mode", "name", "segment", "pair"),
    }
