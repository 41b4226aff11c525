"""Templates of declared tasks: one file, any number of instances."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    answers,
    eventually,
    inspect,
    ok,
    registered,
    says,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.declared import DIRECTORY, ETC, Declarations, identity, main_pid, status, stop_awaited

WEB = "Memory=64M\nPublish=870%i:80\nArgument={mirage} --name=%p-%i\nLabel=SITE=site-%i"
INSTALL = "[Install]\nWantedBy=multi-user.target\nDefaultInstance=2\n"
SYSTEM = Path("/run/systemd/system")


@pytest.fixture
def web(declare: Declarations) -> Declarations:
    """The template of web servers, read by PID 1."""
    declare(
        "web@", WEB, rest=f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=100ms\n{INSTALL}"
    )
    return declare


def is_up(instance: int) -> bool:
    return answers(8700 + instance)


def started(*instances: int) -> None:
    ok("systemctl", "start", *(f"web@{each}" for each in instances))
    for each in instances:
        eventually(lambda each=each: is_up(each), f"web@{each} answers")  # type: ignore[misc]


def cleared_up(instance: int) -> None:
    unit = f"solo5-prepare@web@{instance}.service"
    eventually(lambda: unit_property(unit, "ActiveState") == "inactive", f"{unit} has cleared up")


def test_one_file_has_three_instances_that_are_tasks_like_others(web: Declarations) -> None:
    started(1, 2, 3)
    tasks = json.loads(ok("solo5ctl", "ps", "--json"))
    assert [(each["name"], each["unit"]) for each in tasks] == [(f"web@{n}", f"web@{n}.service") for n in (1, 2, 3)]
    assert len({identity(each["name"]) for each in tasks}) == 3
    assert len({Path(f"/proc/{main_pid(each['unit'])}").stat().st_uid for each in tasks}) == 3
    shown = status("web@2")
    assert "Solo5 unikernel web@2 (spt)" in shown
    assert "solo5-spt --net:service=s5-" in shown
    assert shown.count("└─") == 1
    assert "--name=web-2" in Path(f"/proc/{main_pid('web@2')}/cmdline").read_text()
    line = json.loads(
        ok("journalctl", "--unit=web@3", "--output=json", "SITE=site-3", "_TRANSPORT=stdout").splitlines()[0]
    )
    assert line["SOLO5_TASK"] == line["SYSLOG_IDENTIFIER"] == "web@3"
    assert unit_property("web@2.service", "ControlGroup") == "/solo5.slice/web@2.service"


# --- updates --------------------------------------------------------------------------------------------------------


def updated(instance: int, *words: str, verb: str = "update") -> subprocess.CompletedProcess[str]:
    return sh("solo5ctl", verb, f"web@{instance}", *words, timeout=120)


def image_of(instance: int) -> str:
    return str(inspect(f"web@{instance}")["image"])


def whole(*instances: int) -> None:
    """Only these run, each with its port; nothing of an update is left."""
    unit = "solo5-update@web@1.service"
    eventually(lambda: unit_property(unit, "ActiveState") == "inactive", "no update is under way")
    assert ok("solo5ctl", "ps", "--all", "--quiet").split() == [f"web@{each}" for each in instances]
    for each in instances:
        assert inspect(f"web@{each}")["ports"]
        assert is_up(each)
        assert not [*(DIRECTORY / f"web@{each}").glob("update.[jp]*")]


def test_an_instance_is_updated_without_a_pause_and_the_others_are_left_alone(web: Declarations, newer: str) -> None:
    """As any declared task, of which no request fails: test_updates.py."""
    ok("systemctl", "enable", "web@1")
    started(1, 2)
    had, others, old = identity("web@1"), main_pid("web@2"), image_of(1)
    done = updated(1, newer, "--watch", "0")
    assert done.returncode == 0, done.stderr
    assert "the new guest, task web.next.1, has the published ports: tcp 10." in done.stdout
    assert "task web@1 runs the new image and has its ports again" in done.stdout
    assert (image_of(1), identity("web@1")) == (newer, had)
    assert f"web@1: back to {old} (SHA-256 " in updated(1, "--watch", "0", verb="rollback").stdout
    assert updated(1, newer, "--watch", "0", "--pause").returncode == 0
    assert (image_of(1), image_of(2), main_pid("web@2")) == (newer, old, others)
    assert f"Image={newer}" in (ETC / "web@1.unikernel.d/50-update.conf").read_text()
    assert not (ETC / "web@.unikernel.d").exists()
    whole(1, 2)
    # What is of one instance only leaves the unit of the template alone, and is there after a restart.
    assert systemctl("is-enabled", "web@1").strip() == "enabled"
    ok("systemctl", "restart", "web@*")
    eventually(lambda: is_up(1) and is_up(2), "both answer")
    assert (image_of(1), image_of(2), identity("web@1")) == (newer, old, had)
    ok("systemctl", "disable", "web@1")


def test_systemctl_reload_updates_each_instance_to_the_changed_file(
    declare: Declarations, place: Files, newer: str
) -> None:
    image = place("/srv/web.spt", (GUESTS / "net.spt").read_bytes())
    declare.write("web@", f"[Unikernel]\nImage={image}\n{WEB}\nWatch=0\n")
    systemctl("daemon-reload")
    started(1, 2)
    other = (DIRECTORY / "web@2/image").readlink()
    image.write_bytes(Path(newer).read_bytes())
    ok("systemctl", "reload", "web@1")
    whole(1, 2)
    assert (DIRECTORY / "web@1/image").readlink() != (DIRECTORY / "web@2/image").readlink() == other
    assert not [*ETC.glob("web@*.d")], "it runs what its template declares"
    ok("systemctl", "reload", "web@*")
    for each in (1, 2):
        unit = f"solo5-update@web@{each}.service"
        eventually(lambda u=unit: unit_property(u, "ActiveState") == "inactive", "it is over")  # type: ignore[misc]
    assert (DIRECTORY / "web@1/image").readlink() == (DIRECTORY / "web@2/image").readlink() != other
    whole(1, 2)


def test_instances_are_enabled_by_name_and_by_default(web: Declarations) -> None:
    ok("systemctl", "enable", "--now", "web@1")
    ok("systemctl", "enable", "web@")
    assert [systemctl("is-enabled", f"web@{each}").strip() for each in (1, 2)] == ["enabled", "enabled"]
    assert {"web@1.service", "web@2.service"} <= set(
        systemctl("list-dependencies", "--plain", "multi-user.target").split()
    )
    ok("systemctl", "start", "multi-user.target")
    eventually(lambda: is_up(1) and is_up(2), "both answer")
    ok("systemctl", "disable", "--now", "web@1", "web@2")


def test_drop_ins_and_an_own_file_differ_from_the_template(web: Declarations) -> None:
    for name, text in (
        ("web@.unikernel.d/10.conf", "[Unikernel]\nMemory=32M\n"),
        ("web@1.unikernel.d/20.conf", "[Unikernel]\nMemory=48M\nPublish=8711:80\n"),
        ("web@3.unikernel", f"[Unikernel]\nImage={GUESTS}/sleeper.spt\n"),
        ("web@3.unikernel.d/10.conf", "[Unikernel]\nMemory=20M\n"),
    ):
        (ETC / name).parent.mkdir(exist_ok=True)
        (ETC / name).write_text(text)
    (ETC / "web@4.unikernel").symlink_to("/dev/null")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web@1", "web@2", "web@3")
    memory = {each: unit_property(f"web@{each}.service", "MemoryMax") for each in (1, 2, 3)}
    assert memory == {1: str(48 << 20), 2: str(32 << 20), 3: str(20 << 20)}
    assert [port["host_port"] for port in inspect("web@1")["ports"]] == [8701, 8711]
    assert inspect("web@3")["image"].endswith("sleeper.spt")
    assert sh("systemctl", "start", "web@4").returncode != 0
    assert "is masked: /etc/solo5/web@4.unikernel is a link to /dev/null" in status("web@4")
    (ETC / "web@3.unikernel").unlink()
    (ETC / "web@3.unikernel.d/10.conf").unlink()
    (ETC / "web@3.unikernel.d").rmdir()
    (ETC / "web@4.unikernel").unlink()
    systemctl("daemon-reload")
    ok("systemctl", "restart", "web@3")
    eventually(lambda: is_up(3), "the instance is the template's now")


HOSTILE = {
    "web@a,b": r"web@a\x2cb",
    "web@a b": r"web@a\x20b",
    r"web@a\x2db": r"web@a\x2db",
    "web@a@b": "web@a@b",
    "web@..": "web@..",
    "web@x-..-..-etc": "web@x-..-..-etc",
    "web@" + "1" * 130: "web@" + "1" * 130,
}
"""What is typed, and the unit that systemctl makes of it."""


def test_a_hostile_instance_is_refused_before_anything_is_made(web: Declarations) -> None:
    before = sorted(DIRECTORY.rglob("*"))
    for typed, unit in HOSTILE.items():
        assert sh("systemctl", "start", typed).returncode == 1, typed
        shown = status(f"{unit}.service")
        assert re.search("instance '.*' of web@ is not usable: expected letters, digits", shown), typed
        systemctl("reset-failed", f"{unit}.service")
    assert sorted(DIRECTORY.rglob("*")) == before


def test_a_slash_in_an_instance_is_an_escaped_one_and_no_path(declare: Declarations) -> None:
    declare("web@", "Argument=%i %I", image="sleeper.spt")
    ok("systemctl", "start", "web@a/b")
    assert inspect("web@a-b")["phase"] == "running"
    assert Path(f"/proc/{main_pid('web@a-b')}/cmdline").read_text().split("\0")[-3:] == ["a-b", "a/b", ""]
    assert sh("systemctl", "start", "web@/../etc").returncode == 1
    assert "instance '-..-etc' of web@ is not usable" in status("web@-..-etc")
    assert sh("systemctl", "start", "web@a:b").returncode == 1  # systemd itself refuses the name of its user
    systemctl("reset-failed", "web@-..-etc.service")


def test_a_removed_template_stops_nothing_and_leaves_nothing(web: Declarations) -> None:
    started(1, 2)
    ok("systemctl", "stop", "web@2")
    cleared_up(2)
    pid = main_pid("web@1")
    (ETC / "web@.unikernel").unlink()
    systemctl("daemon-reload")
    assert main_pid("web@1") == pid
    assert is_up(1)
    assert not (DIRECTORY / "web@2").exists()
    assert sh("systemctl", "start", "web@2").returncode != 0
    assert f"{ETC}/web@.unikernel was removed" in status("web@2") + status("web@1")
    stop_awaited("web@")  # PID 1 stops them at a daemon-reload, if their file is there
    ok("systemctl", "stop", "web@1")
    cleared_up(1)
    assert not list(Path("/run/solo5/network/tasks").glob("web@*"))
    assert "web@1" not in registered()
    ok("solo5ctl", "gc")  # what is kept of an ended one: web@2 had stopped while it was declared
    systemctl("daemon-reload")
    assert not list(DIRECTORY.glob("web@*"))
    assert not [path for path in SYSTEM.iterdir() if "web@" in path.name]
    assert unit_property("web@1.service", "LoadState") == "not-found"


def test_a_value_that_only_one_instance_cannot_have_is_refused_at_its_start(web: Declarations) -> None:
    started(1)
    assert sh("systemctl", "start", "web@x").returncode == 1
    assert f"{ETC}/web@.unikernel:4: Publish= '870x:80'" in status("web@x")
    assert "web@x" in ok("solo5ctl", "ps", "--all")


def test_an_image_of_each_instance_must_be_for_the_same_tender(declare: Declarations, place: Files) -> None:
    for each, guest in (("a", "net.spt"), ("b", "net.spt"), ("c", "net.hvt")):
        place(f"/srv/image-{each}.bin", (GUESTS / guest).read_bytes())
    declare.write("web@", "[Unikernel]\nImage=/srv/image-%i.bin\nArgument={mirage}\n")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web@a", "web@b")
    says("web@b", "serving")
    assert sh("systemctl", "start", "web@c").returncode == 1
    assert "is not what the unit file of web@ was made for" in status("web@c")
    assert "write /etc/solo5/web@c.unikernel" in status("web@c")


def test_an_instance_waits_for_what_its_template_names(declare: Declarations, place: Files) -> None:
    late = Path("/run/late")
    place(late / "none")
    place(
        SYSTEM / "slow@.service",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart=/bin/sh -c 'sleep 0.5; cp {GUESTS}/net.spt {late}/%i.spt'\n",
    )
    declare.write(
        "web@",
        f"[Unit]\nRequires=slow@%i.service\nAfter=slow@%i.service\n"
        f"[Unikernel]\nImage={late}/%i.spt\nTender=spt\n{WEB}\n",
    )
    systemctl("daemon-reload")
    started(1)  # its preparation reads the image, which is not there before
    ok("systemctl", "stop", "slow@1")
