"""A guest that floods its console, another that does not, and a small journal."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, inspect, kill_main, ok, remove_namespace, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import EVERY_LINE, Allocation, Jobs, ended, guest, hcl, placed, running

FLOODER = guest("flood.spt", "lines=4000000000", "bytes=80", "at-once=800")
QUIET = guest("sleeper.spt", "for=2")

SECONDS = 5
"""For a machine that is busy; what was measured is in docs/consoles.md."""

SMALL = "[Journal]\nSystemMaxUse=128M\nRuntimeMaxUse=128M\nSystemMaxFileSize=8M\nRuntimeMaxFileSize=8M\n"
"""What is let through, 3000 lines a second here, fills it in half a minute or more."""

LEAST = 500_000
"""Lines of the flood, which without a limit fill it: each takes more than 256 bytes (journald's JOURNAL_FILE_FORMAT:
an entry with 64 + 4 bytes for each of some 25 fields, a data object with 72 and the line)."""


@pytest.fixture
def small_journal() -> Iterator[None]:
    settings = Path("/run/systemd/journald.conf.d/small.conf")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(SMALL)
    ok("systemctl", "restart", "systemd-journald")
    yield
    settings.unlink()
    ok("systemctl", "restart", "systemd-journald")


class Flood:
    """The progress of a flood, used as a clock that scales with the speed of the machine."""

    def __init__(self, alloc: Allocation) -> None:
        self.unit = alloc.unit()

    def now(self, *options: str) -> int:
        """Return the number of the last line in the journal."""
        matches = (f"_SYSTEMD_UNIT={self.unit}", "PRIORITY=6")
        return int(ok("journalctl", "--quiet", "--output=cat", "--lines=1", *options, *matches).split()[1])


def state(alloc: Allocation) -> str:
    """Return the state of a task; empty: Nomad's server has none yet."""
    states = alloc.about().get("TaskStates") or {}
    return str(states.get("guest", {}).get("State", ""))


def moment(name: str, text: str) -> float:
    """Return when journald took a line of a unit, in seconds since the epoch."""
    lines = ok("journalctl", "--quiet", "--output=json", f"_SYSTEMD_UNIT={name}").splitlines()
    [entry] = [each for each in map(json.loads, lines) if text in str(each["MESSAGE"])]
    return int(entry["__REALTIME_TIMESTAMP"]) / 1e6


@pytest.mark.usefixtures("small_journal")
def test_a_flood_delays_no_other_task_and_leaves_the_journal_its_history(jobs: Jobs) -> None:
    token = os.urandom(8).hex()
    ok("sh", "-c", f"echo before the flood: {token} | systemd-cat --identifier=history")
    [alloc] = jobs.run(hcl("flooder", FLOODER))
    flood = Flood(alloc)
    eventually(lambda: flood.now() > LEAST, "it floods")
    first, began = flood.now(), time.time()
    jobs.submit(hcl("quiet", QUIET, kind="batch"))
    quiet = placed("quiet")
    console = quiet.written("sleeping")
    arrived, seen = flood.now(), time.time()
    name = quiet.unit()
    eventually(lambda: state(quiet) == "dead", "its end is reported")
    over, told = flood.now(), time.time()
    quiet.happens("Exit Code: 0")
    assert "solo5_exit(0)" in console.read_text()
    second = round((over - first) / (told - began))
    shown, exited = moment(name, "sleeping"), moment(name, "solo5_exit(0)")
    at_line, at_exit = (flood.now(f"--until=@{each:.6f}") for each in (shown, exited))
    print(f"line after {seen - shown:.2f} s, end after {told - exited:.2f} s, {second} lines of the flood a second")
    assert arrived - at_line < SECONDS * second
    assert over - at_exit < SECONDS * second
    assert token in ok("journalctl", "--quiet", "--identifier=history", "--output=cat")
    stderr = alloc.file("alloc/logs/guest.stderr.0").read_text()
    assert "solo5-relay: journald dropped " in stderr
    assert unit_property(flood.unit, "ActiveState") == "active"
    running("flooder")


SETTINGS = Path("/etc/solo5/namespace.toml")
LIMITS = Path("/etc/systemd/journald@solo5.conf")
SPACE = 24 << 20
"""Bytes that the namespace may take, in files of a third."""

ENOUGH = 2 * SPACE // 256
"""Lines that take twice as much: see `LEAST`."""

RELAY = "solo5-relay.service"
READY = f'{QUIET}\nready {{\n  console = "^sleeping$"\n}}'


@pytest.fixture
def namespace(agent: Agent) -> Iterator[None]:
    """A small journal namespace for consoles."""
    LIMITS.write_text(f"[Journal]\nSystemMaxUse={SPACE}\nSystemMaxFileSize={SPACE // 3}\n")
    SETTINGS.write_text('log_namespace = "solo5"\n')
    yield
    SETTINGS.unlink()
    LIMITS.unlink()
    remove_namespace("solo5")


def journal(*options: str) -> str:
    return ok("journalctl", "--quiet", "--output=cat", *options)


def forwarded(name: str) -> str:
    """Return the cursor behind which the relay's next bytes of a task's stdout are."""
    progress = json.loads(Path(f"/run/solo5/relay/{name}.json").read_text())["progress"]["stdout"]
    return str(progress.get("staged", progress)["cursor"])


@pytest.mark.usefixtures("namespace")
def test_consoles_in_a_namespace_leave_the_hosts_journal_alone_and_take_no_more_than_its_space(
    jobs: Jobs, machine: Machine
) -> None:
    """All readers use the namespace: the relay, `ready`, the outcome, solo5ctl logs. Then the flood starts.

    Not beside it: without a rate it replaces the lines of others there within seconds (docs/consoles.md).
    """
    machine.expect("solo5-relay.service: (Main process exited|Failed with result)")
    cursor = journal("--lines=1", "--show-cursor").rpartition("-- cursor: ")[2].strip()
    jobs.submit(hcl("ready", READY, kind="batch"))
    jobs.submit(hcl("aborts", f'unikernel = "{GUESTS}/aborter.hvt"', kind="batch"))
    aborts = ended("aborts")
    aborts.happens("The guest aborted: Solo5: ABORT: aborter.c")
    ready = ended("ready")
    ready.happens("console line “sleeping”")
    ready.says("solo5_exit(0)")
    [alloc] = jobs.run(hcl("flooder", FLOODER + EVERY_LINE))
    flooder = alloc.unit()
    console = alloc.file("alloc/logs/guest.stdout.0")
    eventually(lambda: console.exists() and b"line " in console.read_bytes()[:100], "Nomad's log has its lines")

    def last_number() -> int:
        """0 where journald has just removed the file with its lines."""
        line = journal("--namespace=solo5", f"--unit={flooder}", "--lines=1", "PRIORITY=6")
        return int(line.split()[1]) if line else 0

    eventually(lambda: last_number() > ENOUGH, "it has flooded")
    assert journal(f"_SYSTEMD_UNIT={flooder}") == ""
    assert "Started" in journal(f"--unit={flooder}")
    assert journal(f"--after-cursor={cursor}", "--identifier=systemd") != "", "the host's journal has all since then"
    taken = sum(each.stat().st_blocks * 512 for each in Path("/var/log/journal").glob("*.solo5/*"))
    assert taken <= SPACE + SPACE // 3
    name = alloc.name()
    assert "line " in ok("solo5ctl", "logs", "--tail=1", name)
    assert inspect(name)["log_namespace"] == "solo5"
    assert unit_property(flooder, "ActiveState") == "active"
    SETTINGS.write_text("")
    kill_main(RELAY)
    seen = forwarded(name)
    eventually(lambda: forwarded(name) != seen, "the task's lines come from its namespace still")
