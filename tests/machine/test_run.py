"""The life of a task, with solo5ctl."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Machine,
    Runner,
    eventually,
    inspect,
    logged,
    ok,
    says,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.consoles import UNLIMITED, shell_task
from tests.machine.mishaps import end_main_thread


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_foreground_copies_the_console_and_exits_as_the_guest(machine: Machine, target: str) -> None:
    done = sh("solo5ctl", "run", "--rm", f"{GUESTS}/hello.{target}", "one", "two words", "exit=7")
    assert done.returncode == 7, done.stderr
    assert "arguments: 'one two words exit=7'" in done.stdout
    assert done.stderr == ""


def test_detached_task_is_shown_as_by_systemd(run: Runner) -> None:
    os.environ["SECRET_OF_THE_CALLER"] = "x"
    name = run("sleeper.hvt", name="seen", options=("--memory", "64M"))
    says(name, "sleeping")
    assert name in ok("solo5ctl", "ps", "--quiet").split()
    seen = inspect(name)
    assert b"SECRET_OF_THE_CALLER" not in Path(f"/proc/{seen['pid']}/environ").read_bytes()
    status = sh("systemctl", "status", "--no-pager", f"solo5-task-{name}.service").stdout
    assert "active (running)" in status
    assert "solo5-hvt --mem=" in status, "the whole command line of the tender"
    assert f"solo5-task-{name}.service" in ok("systemd-cgls", "--no-pager", "--unit", "solo5.slice")
    logged("sleeping", f"SOLO5_TASK={name}")
    assert unit_property(f"solo5-task-{name}.service", "InvocationID") == seen["invocation_id"]
    assert "sleeper.hvt" in unit_property(f"solo5-task-{name}.service", "Description")


def test_limits_that_are_not_enforced_are_named(machine: Machine) -> None:
    """On this machine's own hierarchy; `solo5ctl doctor` names the same controllers."""
    enabled = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    lacking = [name for name in ("memory", "pids") if name not in enabled]
    options = ("--memory", "64M", "--property", "TasksMax=8")
    done = sh("solo5ctl", "run", "--rm", *options, f"{GUESTS}/hello.spt")
    named = f"limits not enforced: MemoryMax, TasksMax; cgroup v2 controllers not available: {', '.join(lacking)};"
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("limits not enforced") == bool(lacking)
    assert not lacking or named in done.stderr
    facts = {fact["name"]: fact for fact in json.loads(ok("solo5ctl", "doctor", "--json"))}
    assert [name for name in lacking if name not in facts["cgroups"]["value"]] == []


@pytest.mark.parametrize(("target", "send"), [("hvt", os.kill), ("spt", os.killpg)])
def test_interrupt_stops_the_guest(
    machine: Machine, run: Runner, target: str, send: Callable[[int, int], None]
) -> None:
    """A terminal sends SIGINT to the whole foreground process group."""
    attended = subprocess.Popen(
        ["solo5ctl", "run", "--rm", "--name", f"ctrl-c-{target}", f"{GUESTS}/sleeper.{target}"],
        stdout=-1,
        stderr=-1,
        start_new_session=True,
    )
    eventually(lambda: "sleeping" in sh("solo5ctl", "logs", f"ctrl-c-{target}").stdout, "the guest runs")
    send(attended.pid, signal.SIGINT)
    _, said = attended.communicate(timeout=60)
    assert attended.returncode == 130, said
    assert sh("solo5ctl", "inspect", f"ctrl-c-{target}").returncode == 125, "removed, as --rm asks"


def test_dollars_and_percents_in_arguments_reach_the_guest(run: Runner) -> None:
    name = run("hello.hvt", "$HOME", "${{PATH}}", "$$", "a$", "%n")
    for number, text in enumerate(("$HOME", "${PATH}", "$$", "a$", "%n"), start=1):
        says(name, f"argument {number}: '{text}'")


def test_ended_task_keeps_its_outcome_until_rm(run: Runner) -> None:
    name = run("hello.hvt", "exit=9", name="kept")
    assert ok("solo5ctl", "wait", name).split()[-1] == "9"
    for word in ("daemon-reload", "daemon-reexec"):
        systemctl(word)
        assert inspect(name)["outcome"] == inspect(name)["outcome"] | {"ending": "exited", "exit_code": 9}
    taken = run.fail("--name", name, f"{GUESTS}/hello.hvt")
    assert taken.returncode == 125
    assert f"solo5ctl rm {name}" in taken.stderr
    ok("solo5ctl", "rm", name)
    assert sh("solo5ctl", "inspect", name).returncode == 125


def test_rm_requires_force_for_a_running_task_and_run_replaces_it(run: Runner) -> None:
    name = run("sleeper.spt")
    refused = sh("solo5ctl", "rm", name)
    assert refused.returncode == 125
    assert "running" in refused.stderr
    run("sleeper.spt", name=name, options=("--replace",))
    ok("solo5ctl", "rm", "--force", name)


def test_logs_follow_until_the_end_with_every_line_once(run: Runner) -> None:
    name = run("flood.spt", "lines=2000", "bytes=40")
    lines = ok("solo5ctl", "logs", "--follow", name).splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert numbers == list(range(1, 2001))
    assert len(ok("solo5ctl", "logs", "-n", "5", name).splitlines()) == 5
    waiting = f"solo5ctl run --rm --name waiting {GUESTS}/sleeper.spt | grep -m1 sleeping; echo ${{PIPESTATUS[0]}}"
    assert ok("timeout", "30", "bash", "-c", waiting) == "sleeping\n141\n"
    run.names.append("waiting")
    following = "solo5ctl logs -f waiting | head -1; echo ${PIPESTATUS[0]}"
    assert ok("timeout", "30", "bash", "-c", following) == "sleeping\n141\n"


def test_freeze_and_thaw(run: Runner) -> None:
    name = run("spinner.spt")
    says(name, "spinning")
    ok("solo5ctl", "freeze", name)
    assert inspect(name)["phase"] == "frozen"
    stat = Path(f"/sys/fs/cgroup{unit_property(f'solo5-task-{name}.service', 'ControlGroup')}/cpu.stat")
    before = stat.read_text()
    time.sleep(0.5)
    assert stat.read_text() == before, "a frozen guest uses no processor"
    ok("solo5ctl", "thaw", name)
    eventually(lambda: stat.read_text() != before, "it runs again")
    ok("solo5ctl", "freeze", name)
    ok("solo5ctl", "stop", name)
    assert inspect(name)["outcome"]["ending"] == "stopped", "a frozen task can be stopped"


def test_zombie_leader_is_detected_and_killed(run: Runner) -> None:
    """A tender whose main thread has exited while another runs: PID 1 gets no SIGCHLD, and SIGTERM has no effect."""
    name = run("sleeper.hvt")
    says(name, "sleeping")
    pid = str(inspect(name)["pid"])
    end_main_thread(pid)
    eventually(lambda: inspect(name)["phase"] == "hung", "seen as hung")
    begun = time.monotonic()
    ok("solo5ctl", "stop", "--time", "50", name)
    assert time.monotonic() - begun < 40, "without waiting for an answer to TERM that cannot come"
    assert inspect(name)["phase"] == "ended"


@pytest.mark.parametrize("kind", [(), ("--scope",)], ids=["service", "scope"])
def test_dry_run_writes_no_file(machine: Machine, tmp_path: Path, kind: tuple[str, ...]) -> None:
    """Of an image that the store does not have; the network service runs already."""
    image = tmp_path / "new.hvt"
    image.write_bytes(Path(f"{GUESTS}/net.hvt").read_bytes() + os.urandom(16))
    ok("solo5ctl", "network", "ls")
    before = _files()
    words = (*kind, "--name", "dry", "-p", "8080:80", str(image), "--ipv4={net.service.ipv4_cidr}")
    planned = json.loads(ok("solo5ctl", "run", "--dry-run", "--json", *words))
    assert _files() == before
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    assert planned["image"] == {"path": f"/var/lib/solo5/images/{digest}", "sha256": digest}


def _files() -> dict[str, tuple[int, ...]]:
    """Inode, mode, size and times of everything in the project's state directories."""
    paths = [path for root in ("/var/lib/solo5", "/run/solo5") for path in Path(root).rglob("*")]
    found = {str(path): path.lstat() for path in paths}
    return {name: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found.items()}


NO_LINES = "solo5ctl: no console lines: expected root or a member of group systemd-journal.\n"


@pytest.fixture
def writer(machine: Machine) -> Iterator[str]:
    script = r"printf 'a\000b\n\n \377\n\033[2J\n'; printf '%0100000d\nlast' 0; exec sleep 60"
    shell_task("bytes", script, *UNLIMITED)
    yield "bytes"
    ok("systemctl", "stop", "solo5-task-bytes.service")


def test_lines_of_any_bytes_are_copied(writer: str) -> None:
    """journald ends a line at a NUL, and splits one after 48 KiB."""
    eventually(lambda: len(copied(writer)) > 100_000, "the console is in the journal")
    *lines, rest = copied(writer).split(b"\n")
    assert lines[:4] == [b"a", b"b", b" \xff", b"\x1b[2J"]
    assert (b"".join(lines[4:]), max(map(len, lines)), rest) == (b"0" * 100_000, 48 << 10, b"")
    as_json = [json.loads(line) for line in ok("solo5ctl", "logs", "--json", writer).splitlines()]
    assert [line["message"] for line in as_json] == [line.decode("utf-8", "replace") for line in lines]
    assert {line["stream"] for line in as_json} == {"stdout"}
    assert copied(writer, "--tail", "1") == lines[-1] + b"\n"
    assert copied(writer, "--tail", "0") == b""


def copied(name: str, *options: str) -> bytes:
    return subprocess.run(["solo5ctl", "logs", *options, name], stdout=subprocess.PIPE, check=True).stdout


def test_user_without_permission_gets_the_reason_at_once(run: Runner) -> None:
    name = run("sleeper.spt")
    says(name, "sleeping")
    for options in ((), ("--follow",)):
        done = sh(*NOBODY, "solo5ctl", "logs", *options, name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", NO_LINES)
