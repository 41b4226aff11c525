"""How tasks end, and that each end is told from the others: the same words by ps, inspect and wait."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.machine import records
from tests.machine.conftest import GUESTS, Machine, Runner, given, inspect, ok, says, sh, unit_property
from tests.machine.mishaps import end_main_thread

from solo5_systemd.storage.locks import holders

TARGETS = ["hvt", "spt"]
Told = tuple[str, str, int | None, int | None, bool]
"""Guest, its arguments; exit code and signal, and whether a retry can help."""

OF_THEMSELVES: dict[str, list[Told]] = {
    "exited": [
        ("hello.hvt", "", 0, None, False),
        ("hello.spt", "", 0, None, False),
        ("hello.hvt", "exit=1", 1, None, True),
        ("hello.hvt", "exit=300", 44, None, True),
        ("hello.spt", "exit=64", 64, None, False),
    ],
    "aborted": [("aborter.hvt", "", 255, None, True), ("aborter.spt", "", 255, None, True)],
    "trapped": [
        ("trapper.hvt", "", 255, None, True),
        ("trapper.spt", "", None, 4, True),
        ("trapper.spt", "what=read", None, 11, True),
        ("trapper.spt", "what=text", None, 11, True),
    ],
    "guest-out-of-memory": [
        ("toucher.hvt", "mb=1 then=more", 2, None, True),
        ("toucher.spt", "mb=1 then=more", 2, None, True),
        ("aborter.hvt", "how=memory", 255, None, False),
        ("aborter.spt", "how=start", 255, None, False),
        ("aborter.spt", "how=collect", 255, None, True),
    ],
    "forbidden-system-call": [("trapper.spt", "what=syscall", None, 31, False)],
    "tender-failed": [("trapper.hvt", "what=text", 1, None, True)],
}


@pytest.mark.parametrize("ending", OF_THEMSELVES)
def test_a_guests_own_end(run: Runner, ending: str) -> None:
    expected = {run(guest, *arguments.split()): told for guest, arguments, *told in OF_THEMSELVES[ending]}
    for name, outcome in waited(*expected).items():
        told = [outcome.get("exit_code"), outcome.get("signal"), outcome["retry"]]
        assert (outcome["ending"], told) == (ending, expected[name]), outcome


def waited(*names: str) -> dict[str, dict[str, Any]]:
    """Outcomes by name, as `wait` has them."""
    return {task["name"]: task["outcome"] for task in json.loads(ok("solo5ctl", "wait", "--json", *names))}


def asleep(run: Runner, *targets: str) -> list[str]:
    """A guest that sleeps for each of the tenders."""
    names = [run(f"sleeper.{target}") for target in targets]
    for name in names:
        says(name, "sleeping")
    return names


def tender(name: str) -> str:
    return unit_property(f"solo5-task-{name}.service", "MainPID")


# --- somebody ends it ------------------------------------------------------------------------------------------


STOPS = [
    ("solo5ctl stop NAME", 15, TARGETS),
    ("solo5ctl stop --signal INT NAME", 2, ["hvt"]),
    ("solo5ctl kill --signal TERM NAME", 15, ["spt"]),
    ("systemctl stop solo5-task-NAME.service", 15, TARGETS),
    ("systemctl kill --signal INT --kill-whom=main solo5-task-NAME.service", 2, ["hvt"]),
]


def test_a_stop_through_systemd_whoever_asks(run: Runner) -> None:
    signals = {}
    for how, number, targets in STOPS:
        for name in asleep(run, *targets):
            ok(*how.replace("NAME", name).split())
            signals[name] = number
            if "--signal INT NAME" in how:
                assert unit_property(f"solo5-task-{name}.service", "ActiveState") == "inactive", "not failed"
            if how.startswith("systemctl stop"):
                assert unit_property(f"solo5-task-{name}.service", "Result") == "success"
    for name, told in waited(*signals).items():
        assert (told["ending"], told["signal"], told["clean"]) == ("stopped", signals[name], True), told
        assert told["exit_status"] == 128 + signals[name], "the same for both tenders"
    assert not set(signals) & set(ok("solo5ctl", "ps", "--quiet").split())
    assert set(signals) <= set(ok("solo5ctl", "ps", "--all", "--quiet").split())


def test_a_signal_of_another_program_is_distinguished_from_a_stop(run: Runner) -> None:
    signals = {}
    for sent, number, targets in (("TERM", 15, TARGETS), ("INT", 2, ["hvt"]), ("KILL", 9, ["spt"])):
        for name in asleep(run, *targets):
            ok("kill", f"-{sent}", tender(name))
            signals[name] = (sent, number)
    for name, told in waited(*signals).items():
        sent, number = signals[name]
        assert (told["ending"], told["signal"], told["clean"]) == ("killed", number, False), told
        assert told["sentence"] == f"killed by SIG{sent}, which systemd did not send"


def test_what_systemd_said_is_waited_for_where_journald_is_just_being_restarted(run: Runner) -> None:
    [name] = asleep(run, "spt")
    journald = int(unit_property("systemd-journald.service", "MainPID"))
    with subprocess.Popen(["solo5ctl", "wait", "--json", name], stdout=subprocess.PIPE, text=True) as waiting:
        os.kill(journald, signal.SIGSTOP)
        ok("solo5ctl", "kill", name)
        time.sleep(1)  # and so it asks the one that is about to die
        os.kill(journald, signal.SIGKILL)
        [told] = json.loads(waiting.communicate(timeout=60)[0])
    assert told["outcome"]["sentence"] == "killed by SIGKILL, which systemd sent on request"


def test_a_hung_tender_is_killed_by_who_waits_and_that_is_said(run: Runner) -> None:
    [name] = asleep(run, "hvt")
    end_main_thread(tender(name))
    told = waited(name)[name]
    assert (told["ending"], told["signal"], told["retry"]) == ("stalled", 9, True)
    noted = ok("journalctl", "--no-pager", "--output=cat", "--unit", f"solo5-task-{name}.service")
    assert "Killing hung tender: main thread exited" in noted, "the unit's own journal has it"


# --- tender, host and systemd ----------------------------------------------------------------------------------


@contextmanager
def full_disk() -> Iterator[Path]:
    """A sparse image on a file system that has no room for its first sector."""
    where = Path("/srv/full")
    where.mkdir()
    ok("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where))
    try:
        disk = where / "disk"
        disk.touch()
        disk.chmod(0o666)
        os.truncate(disk, 1 << 20)
        sh("dd", "if=/dev/zero", f"of={where}/filler", "bs=4k")
        yield disk
    finally:
        ok("umount", "--lazy", str(where))
        where.rmdir()


def test_a_full_disk_ends_hvt_and_is_an_spt_guests_own_affair(run: Runner) -> None:
    with full_disk() as disk:
        endings = []
        for target in TARGETS:
            name = run(f"disk.{target}", "write=more", options=("--block", f"storage={disk}"))
            endings += [waited(name)[name]]
        ok("solo5ctl", "rm", *run.names)  # a disk that is not mounted cannot be taken back
    hvt, spt = endings
    assert (hvt["ending"], hvt["retry"]) == ("tender-failed", True)
    where = "no space is left in the file system of disk storage (/srv/full/disk)"
    assert hvt["sentence"] == f"the tender failed: Fatal error when writing: No space left on device; {where}"
    assert spt["ending"] == "aborted", "this guest gives up by itself"
    assert spt["sentence"].endswith(f"; {where}")
    for each in endings:
        assert each["full_disks"] == [{"disk": "storage", "path": "/srv/full/disk", "free": 0}]


def changed(name: str) -> str:
    """Return what `inspect` shows of a change of the task's disk by another program."""
    [disk] = inspect(name)["disks"]
    change = str(disk.get("change", ""))
    assert (change in ok("solo5ctl", "inspect", name)) or not change
    return change


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_that_another_program_changes_under_its_guest(run: Runner, tmp_path: Path, target: str) -> None:
    """A hole reads as zeros, and nothing shows it; what is cut off is an error; a name is only a name."""
    disk = given(tmp_path / "disk.img", b"kept".ljust(64 << 10, b"\0"))
    name = run(f"disk.{target}", "watch", options=("--block", f"storage={disk}"))
    says(name, "sector 0: 'kept'")
    assert changed(name) == ""
    ok("fallocate", "--punch-hole", "--length", "4096", str(disk))
    says(name, "sector 0: ''")
    assert changed(name) == ""
    moved = disk.rename(tmp_path / "moved")
    assert changed(name) == "no file has its path any more"
    disk.write_bytes(b"other".ljust(64 << 10, b"\0"))
    assert changed(name) == "another file has its path"
    disk.unlink()
    moved.rename(disk)
    with disk.open("r+b") as file:
        file.write(b"again")
        file.flush()
        says(name, "sector 0: 'again'")
        file.truncate(0)
    told = waited(name)[name]
    if target == "hvt":
        assert (told["ending"], told["retry"]) == ("tender-failed", True)
        assert told["sentence"] == "the tender failed: Fatal error: read only 0 out of 512 bytes"
    else:
        assert told["ending"] == "aborted", "this guest gives up by itself"
    done = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.{target}", "read")
    assert "has 0 bytes: expected one or more whole sectors of 512" in done.stderr


def test_a_file_that_was_cut_is_shown_as_long_as_it_is_short(run: Runner, tmp_path: Path) -> None:
    disk = given(tmp_path / "disk.img", b"kept".ljust(64 << 10, b"\0"))
    name = run("disk.spt", "watch", options=("--block", f"storage={disk}"))
    says(name, "sector 0: 'kept'")
    os.truncate(disk, 512)
    assert changed(name) == "its file has 512 bytes instead of 65536"
    os.truncate(disk, 64 << 10)
    assert changed(name) == ""


XFS_IOC_GOINGDOWN, WITHOUT_LOG = 0x8004587D, 2
"""ioctl(2) and its argument, from linux xfs_fs.h: what XFS does by itself when its device is gone."""


def test_a_disk_whose_device_is_gone_ends_hvt_and_is_an_error_of_an_spt_guest(run: Runner) -> None:
    where = Path("/srv/gone")
    endings = {}
    for target in TARGETS:
        with records.reflinks(where):
            for name in ("one", "two"):
                (where / name).touch()
                os.truncate(where / name, 1 << 20)
            options = ("--block", f"first={where}/one", "--block", f"second={where}/two")
            ok("chown", "solo5:", str(where / "one"), str(where / "two"))
            name = run(f"sequence.{target}", "every=1000", options=options)
            says(name, "writing")
            directory = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.ioctl(directory, XFS_IOC_GOINGDOWN, struct.pack("I", WITHOUT_LOG))
            os.close(directory)
            endings[target] = waited(name)[name]
            device = ok("findmnt", "--noheadings", "--output=SOURCE", str(where)).strip()
            with Path(device).open("rb"):  # else another machine of this host may take its number
                ok("umount", str(where))
                ok("mount", device, str(where))
            ok("solo5ctl", "rm", name)  # its disks are there again, and are taken back
    where.rmdir()
    hvt, spt = endings["hvt"], endings["spt"]
    assert (hvt["ending"], hvt["retry"]) == ("tender-failed", True)
    assert hvt["sentence"] == "the tender failed: Fatal error when writing: Input/output error"
    assert (spt["ending"], "full_disks" in spt) == ("aborted", False), "this guest gives up by itself"


@contextmanager
def plugged(count: int) -> Iterator[list[str]]:
    """Plug SCSI disks in and give them to tasks; yield the paths of their nodes. At the end nothing has them open."""
    ok("modprobe", "scsi_debug", "dev_size_mb=8", f"max_luns={count}")
    try:
        ok("udevadm", "settle")  # which sets the owner of a node anew
        found = Path("/sys/bus/pseudo/drivers/scsi_debug").glob("adapter*/host*/target*/*/block/*")
        nodes = sorted(f"/dev/{each.name}" for each in found)
        ok("chown", "solo5:", *nodes)
        yield nodes
    finally:
        ok("modprobe", "--remove", "scsi_debug")


GONE = ("read only 0 out of 512 bytes", "No space left on device", "Input/output error", "cannot read the sector")
"""The error of a device without a size, or, in the moment of its removal, one of the device; and spt's guest's own."""


@pytest.mark.vm  # a container has no devices of its own
@pytest.mark.long
def test_a_block_device_that_is_pulled_out_is_named(run: Runner) -> None:
    """A read is at the end of the device, and a write has no space on it: no error says that it is gone."""
    with plugged(5) as nodes:
        by_hvt, by_spt, first, second, kept = nodes
        hvt, spt = (
            run(f"disk.{target}", "watch", options=("--block", f"storage={node}"))
            for target, node in zip(TARGETS, (by_hvt, by_spt), strict=True)
        )
        writing = run(
            "sequence.hvt", "every=1000", options=("--block", f"first={first}", "--block", f"second={second}")
        )
        staying = run("disk.hvt", "read", "stay", options=("--block", f"storage={kept}"))
        says(writing, "writing")
        for name in (hvt, spt, staying):
            says(name, "sector 0: ''")
        assert changed(staying) == ""
        for node in (by_hvt, by_spt, second, kept):
            Path("/sys/block", Path(node).name, "device/delete").write_text("1")
        told = waited(hvt, spt, writing)
        assert (inspect(staying)["phase"], changed(staying)) == ("running", "its device is gone")
        ok("solo5ctl", "stop", staying)
        ok("solo5ctl", "rm", hvt, spt, writing, staying)
        assert not list(Path("/var/lib/solo5/users").iterdir()), "no user is kept for it"
        assert not holders(), "nothing is locked"
    assert [told[name]["ending"] for name in (hvt, spt, writing)] == ["tender-failed", "aborted", "tender-failed"]
    for name, disk, node in ((hvt, "storage", by_hvt), (spt, "storage", by_spt), (writing, "second", second)):
        cause, _, added = told[name]["sentence"].partition("; ")
        assert cause.endswith(GONE), cause
        assert added == f"the device of disk {disk} ({node}) is gone"
    assert told[hvt]["lost_disks"] == [{"disk": "storage", "path": by_hvt}]


def test_a_tap_that_is_deleted_ends_hvt_and_an_spt_guest_continues(machine: Machine, run: Runner) -> None:
    machine.expect("network repaired: tap")
    words = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}", "--send=192.0.2.9:9")
    hvt, spt = (run(f"net.{target}", *words) for target in TARGETS)
    for name in (spt, hvt):
        says(name, "serving")
        ok("ip", "-netns", f"solo5-{name}", "link", "delete", inspect(name)["nics"][0]["tap"])
    told = waited(hvt)[hvt]
    assert (told["ending"], told["retry"]) == ("tender-failed", True)
    assert str(told["sentence"]).startswith("the tender failed: Fatal ")
    assert inspect(spt)["phase"] == "running"


def test_a_tender_that_systemd_cannot_execute_has_not_been_started(machine: Machine) -> None:
    """Of a start that failed `run` leaves nothing: this unit is made by hand."""
    unit = "solo5-task-dud.service"
    sh("systemd-run", "--unit", unit, "--property=Type=exec", "--property=User=nobody-at-all", "/bin/true")
    told = inspect("dud")["outcome"]
    assert (told["ending"], told["exit_code"], told["exit_status"], told["retry"]) == ("not-started", 217, 126, False)
    ok("systemctl", "reset-failed", unit)


def test_of_a_unit_that_was_taken_away_nothing_is_invented(run: Runner) -> None:
    [name] = asleep(run, "spt")
    ok("systemctl", "stop", f"solo5-outcome@{name}.target")
    with subprocess.Popen(["solo5ctl", "wait", name], stderr=subprocess.PIPE, text=True) as waiting:
        ok("systemctl", "stop", f"solo5-task-{name}.service")
        _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 125
    assert "removed before its outcome could be read" in said or "no task is named" in said
    assert name in ok("solo5ctl", "gc"), "its user is left"
