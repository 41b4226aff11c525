"""`--scope`: the tender takes the caller's place, accounted and limited like any task."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Machine,
    Runner,
    address,
    eventually,
    given,
    inspect,
    ok,
    registered,
    sh,
    unit_property,
)
from tests.machine.test_network import IPV4, web


@pytest.fixture(autouse=True)
def collected(machine: Machine) -> Iterator[None]:
    """systemd unloads a scope that has ended, and with it goes the last that its user belonged to."""
    yield

    def is_collected() -> bool:
        ok("solo5ctl", "gc")
        return not registered()

    eventually(is_collected, "PID 1 has unloaded the scope")


def test_scope_is_the_callers_own_child(machine: Machine) -> None:
    words = ("solo5ctl", "run", "--scope", "--name", "mine", "-m", "32M", "--dns", "192.0.2.53")
    with subprocess.Popen([*words, f"{GUESTS}/sleeper.hvt", "{dns}", "{hostname}"], stdout=-1, stderr=-1) as tender:
        assert tender.stdout is not None
        eventually(
            lambda: sh("systemctl", "is-active", "solo5-task-mine.scope").stdout.strip() == "active", "the scope"
        )
        eventually(
            lambda: sh("pidof", "solo5-hvt").stdout.strip() == str(tender.pid), "the tender has the caller's process"
        )
        assert unit_property("solo5-task-mine.scope", "Slice") == "solo5.slice"
        assert unit_property("solo5-task-mine.scope", "MemoryMax") == str(32 << 20)
        assert Path(f"/proc/{tender.pid}/cmdline").read_bytes().endswith(b"\x00192.0.2.53\x00mine\x00")
        seen = inspect("mine")
        assert (seen["phase"], seen["image"]) == ("running", f"{GUESTS}/sleeper.hvt")
        assert (seen["dns"], seen["hostname"]) == (["192.0.2.53"], "mine")
        ok("solo5ctl", "stop", "mine")
        tender.communicate(timeout=60)
    assert tender.returncode == 1, "hvt's own answer to TERM"
    assert sh("solo5ctl", "inspect", "mine").returncode == 125, "of an ended scope nothing is kept"


def test_scope_passes_the_guests_status_and_drops_privileges(machine: Machine) -> None:
    done = sh("solo5ctl", "run", "--scope", "--name", "status", f"{GUESTS}/hello.spt", "exit=5")
    assert done.returncode == 5
    assert "exit=5" in done.stdout


def test_scope_has_disks_by_descriptor(machine: Machine, tmp_path: Path) -> None:
    """No blank in a path and no directory that its user may not enter keeps the tender from them."""
    disk = given(tmp_path / "a disk.img", b"found".ljust(512, b"\0"))
    tmp_path.chmod(0o700)
    block = ("--block", f"storage={disk}")
    done = sh("solo5ctl", "run", "--scope", "--name", "disked", *block, f"{GUESTS}/disk.spt", "read")
    assert "sector 0: 'found'" in done.stdout, done.stderr


def test_scope_runs_until_its_allocation_is_removed(machine: Machine, tmp_path: Path) -> None:
    directory = tmp_path / "alloc/3fa85f64"
    directory.mkdir(parents=True)
    place = f"{directory}/alloc"
    said = ("--log-field", f"NOMAD_ALLOC_DIR={place}")
    with subprocess.Popen(
        ["solo5ctl", "run", "--scope", "--name", "lost", *said, f"{GUESTS}/sleeper.spt"], stdout=-1
    ) as tender:
        eventually(lambda: place in sh("solo5ctl", "inspect", "--json", "lost").stdout, "it says whose it is")
        ok("solo5ctl", "gc")
        assert inspect("lost")["phase"] == "running"
        directory.rmdir()
        told = f"task lost: Nomad has removed its allocation ({directory})"
        assert told in ok("solo5ctl", "gc", "--dry-run").splitlines()
        assert tender.poll() is None
        assert told in ok("solo5ctl", "gc").splitlines()
        tender.communicate(timeout=60)
    assert sh("solo5ctl", "inspect", "lost").returncode == 125


NAMESPACES = Path("/run/netns")


def serves(name: str) -> bool:
    return sh("ping", "-c1", "-W1", address(name)).returncode == 0


def test_a_tender_has_the_namespace_of_its_task(run: Runner) -> None:
    one = web(run, name="one")
    pid = unit_property(f"solo5-task-{one}.service", "MainPID")
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/1/ns/net").readlink()
    links = ok("ip", "netns", "exec", f"solo5-{one}", "ip", "-o", "link").splitlines()
    assert len(links) == 2, "lo and the tap"
    [row] = json.loads(ok("solo5ctl", "stats", "--no-stream", "--json", one))
    [nic] = row["nics"]
    assert nic["received"]["packets"] > 0
    ok("solo5ctl", "rm", "--force", one)
    assert not (NAMESPACES / f"solo5-{one}").exists()


@pytest.mark.parametrize("guest", ["net", "sleeper"])
def test_a_scope_runs_in_a_namespace_of_its_own(tmp_path: Path, guest: str) -> None:
    """The guest with a NIC answers; that without one has an empty namespace."""
    options = [IPV4] if guest == "net" else []
    command = ["solo5ctl", "run", "--scope", "--name", "one", str(GUESTS / f"{guest}.spt"), *options]
    with (tmp_path / "log").open("wb") as log:
        tender = subprocess.Popen(command, stdout=log)
    try:
        eventually(lambda: "solo5-spt" in Path(f"/proc/{tender.pid}/cmdline").read_text().split("\0")[0], "it runs")
        assert Path(f"/proc/{tender.pid}/ns/net").readlink() != Path("/proc/1/ns/net").readlink()
        if guest == "net":
            eventually(lambda: serves("one"), "it answers")
    finally:
        tender.kill()
        tender.wait()
        ok("solo5ctl", "gc")
