"""Updates of declared tasks: the new guest beside the old one, ports that move, and all that is undone."""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    Outside,
    Runner,
    address,
    answers,
    eventually,
    inspect,
    logged,
    ok,
    says,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.declared import DIRECTORY, ETC, Declarations, main_pid
from tests.machine.test_joined import SETTINGS
from tests.machine.traffic import requests

from solo5_systemd.declared.update_files import sha256

PORT, ECHO = 8750, 8752
UPDATE = "solo5-update@web.service"
WEB = f"Memory=64M\nPublish={PORT}:80\nArgument={{mirage}}"
DROP_IN = ETC / "web.unikernel.d/50-update.conf"
SYSTEM_DROP_IN = Path("/run/systemd/system/web.service.d/test.conf")
BROKEN = "[Service]\nExecStartPre=/bin/false\n"


@pytest.fixture
def web(declare: Declarations) -> str:
    unit = declare("web", WEB, rest="[Unit]\nStartLimitIntervalSec=0")
    ok("systemctl", "start", unit)
    eventually(is_up, "it answers")
    return unit


@contextmanager
def drained() -> Iterator[None]:
    """Hold a connection to the guest beside, for which it is drained: without one, that phase is over at once."""
    is_moved()
    with socket.create_connection(("127.0.0.1", PORT), 5):
        yield


@pytest.fixture
def images(place: Files) -> Path:
    """A directory that is there at the next boot."""
    return place("/srv/updates/none").parent


def is_up() -> bool:
    return answers(PORT)


def image_of(name: str) -> str:
    return str(inspect(name)["image"])


def whole(unit: str) -> None:
    """Only the task itself runs, with its port; nothing of an update is left."""
    is_over()
    assert [each["name"] for each in json.loads(ok("solo5ctl", "ps", "--all", "--json"))] == ["web"]
    assert inspect("web")["ports"]
    assert unit_property(unit, "ActiveState") == "active"
    assert is_up()
    assert not [*(DIRECTORY / "web").glob("update.[jp]*")]


def is_moved() -> None:
    eventually(lambda: unit_property(UPDATE, "ActiveState") == "active", "the ports are moved")


def is_over() -> None:
    eventually(lambda: unit_property(UPDATE, "ActiveState") == "inactive", "no update is under way")


def update(*words: str) -> subprocess.CompletedProcess[str]:
    return sh("solo5ctl", "update", "web", *words, timeout=120)


def updated(*words: str) -> str:
    return ok("solo5ctl", "update", "web", *words, timeout=120)


def test_a_new_image_takes_the_place_of_the_old_one_at_its_address_until_a_rollback(web: str, newer: str) -> None:
    before, had = main_pid(web), address("web")
    done = updated(newer, "--watch", "1s")
    assert "the new guest, task web.next, has the published ports: tcp 10." in done
    assert "task web runs the new image and has its ports again" in done
    assert "task web is updated" in done
    whole(web)
    assert (image_of("web"), address("web")) == (newer, had)
    assert main_pid(web) != before
    assert f"Image={newer}" in DROP_IN.read_text()
    logged("update: task web runs the new image", "-u", web)
    ok("systemctl", "restart", web)
    assert image_of("web") == newer
    begun = f"--since=@{time.time():.6f}"
    for image in (str(GUESTS / "net.spt"), newer):
        back = ok("solo5ctl", "rollback", "web", "--watch", "0", timeout=120)
        assert f"web: back to {image} (SHA-256 " in back
        assert image_of("web") == image
        whole(web)
    assert "Failed to open" not in ok("journalctl", "--quiet", begun, "-u", "solo5-task-web.next", "--output=cat")


def test_a_command_is_over_once_its_unit_is(web: str, newer: str, place: Files) -> None:
    """What is typed next is not told that an update is under way."""
    place("/run/systemd/system/solo5-update@.service.d/late.conf", "[Service]\nExecStopPost=/bin/sleep 1\n")
    systemctl("daemon-reload")
    for words in (["update", "web", newer], ["rollback", "web"]):
        ok("solo5ctl", *words, "--watch", "0", timeout=120)
        ok("solo5ctl", "sleep", "web")


def test_a_guest_that_routes_keeps_its_routes(place: Files, declare: Declarations, newer: str) -> None:
    """The new guest has them once it has the place of the old one: no two tasks have the same."""
    place(SETTINGS, '[network.default]\nroutes = ["192.168.0.0/16"]\n')
    unit = declare("web", f"{WEB}\nNetwork=service=default,route=192.168.2.0/24")
    ok("systemctl", "start", unit)
    eventually(is_up, "it answers")
    route = ok("ip", "route", "show", "192.168.2.0/24")
    assert address("web") in route
    done = updated(newer, "--watch", "0")
    assert "the new guest, task web.next, has the published ports" in done
    whole(unit)
    assert ok("ip", "route", "show", "192.168.2.0/24") == route


def test_systemctl_reload_is_an_update_to_a_changed_file(declare: Declarations, images: Path, newer: str) -> None:
    image = images / "web.spt"
    shutil.copy(f"{GUESTS}/net.spt", image)
    declare.write("web", f"[Unikernel]\nImage={image}\n{WEB}\nWatch=4s\n")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web")
    before = (DIRECTORY / "web/image").readlink()
    ok("solo5ctl", "update", "web", newer, "--no-block", "--ready", "console:never", "--timeout", "3s")
    assert sh("systemctl", "reload", "web").returncode != 0
    assert unit_property(UPDATE, "ActiveState") == "activating", "an update to another image is no success of a reload"
    is_over()
    shutil.copy(newer, image)
    ok("systemctl", "reload", "web")
    assert main_pid("solo5-task-web.next.service") != "0", "the new guest serves when the reload is over"
    assert inspect("web.next")["ports"]
    assert "is under way" in update(newer).stderr
    assert sh("systemctl", "reload", "web").returncode != 0
    is_over()
    assert (DIRECTORY / "web/image").readlink() != before
    assert not DROP_IN.exists()
    whole("web.service")
    back = ok("solo5ctl", "rollback", "web", "--watch", "0", timeout=120)
    assert "web: back to /var/lib/solo5/previous/web/" in back, "no file of the operator has it"
    ok("systemctl", "restart", "web")
    whole("web.service")


def reloaded(unit: str) -> str:
    """Reload a task, and return the SHA-256 of the image that it runs when its update is over."""
    ok("systemctl", "reload", unit)
    whole(unit)
    return sha256(DIRECTORY / "web/image")


def test_a_reload_takes_a_declared_image_that_was_changed_after_an_update(
    declare: Declarations, images: Path, newer: str
) -> None:
    """Otherwise the drop-in of the update would win, without a word."""
    image, fixed, other = (images / f"{name}.spt" for name in ("web", "fixed", "other"))
    shutil.copy(f"{GUESTS}/net.spt", image)
    fixed.write_bytes(image.read_bytes() + b"\0fixed")
    other.write_bytes(image.read_bytes() + b"\0other")
    declare.write("web", f"[Unikernel]\nImage={image}\n{WEB}\nWatch=0\n")
    systemctl("daemon-reload")
    unit = "web.service"
    ok("systemctl", "start", unit)
    shutil.copy(newer, image)
    assert reloaded(unit) == sha256(newer)
    assert sh("solo5ctl", "rollback", "web", timeout=120).returncode == 0
    assert reloaded(unit) == sha256(f"{GUESTS}/net.spt"), "the declared image is the one that was rolled back"
    assert DROP_IN.exists()
    shutil.copy(fixed, image)
    assert reloaded(unit) == sha256(fixed)
    assert not DROP_IN.exists()
    assert update(newer).returncode == 0
    declare.write("web", f"[Unikernel]\nImage={other}\n{WEB}\nWatch=0\n")
    systemctl("daemon-reload")
    ok("systemctl", "restart", unit)
    logged(f"the declared image is not used: {DROP_IN} has that of the last update. To use it: systemctl", "-u", unit)
    assert reloaded(unit) == sha256(other)
    assert not DROP_IN.exists()
    log = ok("journalctl", "--quiet", "-u", "web", "--output=cat")
    assert f"Image={other} was changed since the last update, and takes the place of {DROP_IN}" in log
    later = DROP_IN.with_name("60-image.conf")
    later.parent.mkdir()
    later.write_text(f"[Unikernel]\nImage={other}\n")
    systemctl("daemon-reload")
    assert f"{later}:2: Image= has precedence over that of {DROP_IN}: expected it in" in update(newer).stderr
    whole(unit)


# --- under load ----------------------------------------------------------------------------------------------------


UPDATES = int(os.environ.get("UPDATES", "1"))
RATE = float(os.environ.get("RATE", "300"))


def test_no_request_fails_through_updates_a_rollback_and_a_bad_image(
    web: str, newer: str, images: Path, outside: Outside
) -> None:
    """`make updates` makes a hundred of them, at 2,000 requests a second."""
    with requests(outside, outside.here, PORT, RATE, 48) as client:  # two guests in turns, each of which holds 64
        for _ in range(UPDATES):
            assert update(newer, "--watch", "0").returncode == 0
            assert sh("solo5ctl", "rollback", "web", "--watch", "0", timeout=120).returncode == 0
        before, image = main_pid(web), image_of("web")
        bad = update(*unready(images))
        assert bad.returncode == 126
        assert "the new guest was not ready within 1 s (tcp:81)" in bad.stderr
        assert (main_pid(web), image_of("web")) == (before, image)
        during = client.tally()
        print(f"{2 * UPDATES} updates: {during}")
        assert (during.failed, during.answered > RATE) == (0, True), during
    # The same client, and what an operator would do without an update.
    with requests(outside, outside.here, PORT, RATE) as client:
        for _ in range(2 * UPDATES - 1):
            ok("systemctl", "restart", web)
            eventually(is_up, "it answers again")
        print(f"{2 * UPDATES - 1} times systemctl restart: {client.tally()}")
        ok("systemctl", "stop", web)
        eventually(lambda: client.tally().failed, "the client notices a guest that is not there")
        ok("systemctl", "start", web)
    logged("update: the new guest was not ready within 1 s", "-u", web)
    whole(web)


class Stream(threading.Thread):
    """Sends random bytes to the guest's echo port without a pause, and compares what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.same = 0
        self.ended = ""

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", ECHO), 30) as connection:
            while not self.over.is_set():
                sent, received = os.urandom(500), b""  # the guest takes 512 at a time
                connection.sendall(sent)
                while len(received) < len(sent) and (part := connection.recv(4096)):
                    received += part
                if received != sent:
                    self.ended = f"after {self.same} bytes: {len(received)} of {len(sent)}"
                    return
                self.same += len(sent)

    def goes_on(self) -> None:
        """It is in flight before and after this moment."""
        before = self.same
        eventually(lambda: self.same > before + 10_000 or self.ended, "bytes go on to arrive")
        assert not self.ended


def test_what_is_in_flight_while_ports_are_moved_arrives_complete(declare: Declarations, newer: str) -> None:
    """Both turns: from the old guest to the one beside it, and from that to the task itself."""
    unit = declare("web", f"{WEB}\nPublish={ECHO}:7", rest="[Unit]\nStartLimitIntervalSec=0")
    ok("systemctl", "start", unit)
    eventually(is_up, "it answers")
    first, second = Stream(), Stream()
    try:
        first.start()
        first.goes_on()
        ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "0", "--drain", "10min")
        is_moved()
        second.start()
        for each in (first, second):
            each.goes_on()
        first.over.set()
        phase = DIRECTORY / "web/update.phase"
        eventually(lambda: phase.read_text() == "draining", "the ports are moved back")
        second.goes_on()
    finally:
        for each in (first, second):
            each.over.set()
            if each.is_alive():
                each.join(timeout=30)
    assert (first.ended, second.ended) == ("", "")
    whole(unit)
    assert image_of("web") == newer


# --- what is undone -------------------------------------------------------------------------------------------------


def unready(images: Path) -> tuple[str, ...]:
    return (str(shutil.copy(f"{GUESTS}/net.spt", images / "bad.spt")), "--ready", "tcp:81", "--timeout", "1s")


def test_a_reload_has_the_result_of_its_update(declare: Declarations, images: Path, newer: str) -> None:
    """PID 1 ends a reload after TimeoutStartSec=, and the update would go on."""
    image = images / "web.spt"
    shutil.copy(f"{GUESTS}/net.spt", image)
    late = "Argument=--count=15\nWatch=0\nReady=console:count 200$\n[Service]"

    def limited(span: str) -> None:
        declare.write("web", f"[Unikernel]\nImage={image}\n{WEB}\n{late}\nTimeoutStartSec={span}\n")
        systemctl("daemon-reload")

    limited("2s")
    ok("systemctl", "start", "web")
    before = main_pid("web.service")
    shutil.copy(newer, image)

    def is_refused(sentence: str) -> bool:
        nonlocal before
        assert sh("systemctl", "reload", "web").returncode != 0
        whole("web.service")
        said = f"update: {sentence}" in ok("journalctl", "--quiet", "-u", "web", "--output=cat")
        if not said:  # a slow machine: PID 1 has ended the reload before Python looked at the time, and it went on
            before = main_pid("web.service")
        assert main_pid("web.service") == before
        return said

    limited("2s")
    eventually(lambda: is_refused("TimeoutStartSec= of task web ends its"), "a sentence says why", 120)
    limited("5s")
    eventually(lambda: is_refused("the new guest did not have"), "a sentence says what was missing", 120)
    limited("30s")
    ok("systemctl", "reload", "web")
    whole("web.service")
    assert main_pid("web.service") != before


def watched(newer: str) -> None:
    """Start an update whose new guest has the ports, and is watched."""
    ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "1min")
    is_moved()


def test_a_guest_that_ends_within_the_watch_gives_the_ports_back(web: str, newer: str) -> None:
    before = main_pid(web)
    with subprocess.Popen(
        ["solo5ctl", "update", "web", newer, "--watch", "1min"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as done:
        is_moved()
        assert is_up()
        ok("kill", "-KILL", main_pid("solo5-task-web.next.service"))
        _, error = done.communicate(timeout=60)
    assert done.returncode == 126
    assert "the new guest ended within its watch" in error
    whole(web)
    assert main_pid(web) == before


def test_a_task_that_is_stopped_during_its_update_is_stopped_also_without_its_declaration(web: str, newer: str) -> None:
    watched(newer)
    ok("systemctl", "stop", web)
    is_over()
    assert json.loads(ok("solo5ctl", "ps", "--json")) == []
    assert not is_up()
    ok("systemctl", "start", web)
    watched(newer)
    (ETC / "web.unikernel").unlink()
    systemctl("daemon-reload")
    ok("systemctl", "stop", web)
    is_over()
    systemctl("daemon-reload")
    assert json.loads(ok("solo5ctl", "ps", "--all", "--json")) == []
    assert not (DIRECTORY / "web").exists()


def stays_stopped(image: str) -> None:
    """Nothing runs, and the next start has this image, with its ports."""
    is_over()
    assert unit_property("web.service", "ActiveState") in ("inactive", "failed")
    assert json.loads(ok("solo5ctl", "ps", "--json")) == []
    assert sh("pgrep", "solo5-(hvt|spt)").returncode != 0
    assert not is_up()
    ok("systemctl", "start", "web")
    eventually(is_up, "it answers")
    assert image_of("web") == image
    whole("web.service")


@pytest.fixture
def slow_start(place: Files) -> Path:
    """A file that holds each start of the task as long as it exists; the start has a job meanwhile."""
    held = place("/run/slow-start")
    held.unlink()
    waits = f"/bin/sh -c 'while [ -e {held} ]; do sleep 0.1; done'"
    no_limit = "[Unit]\nStartLimitIntervalSec=0\n"  # else a fast machine starts it too often, and nothing is held
    place("/run/systemd/system/slow-start.service", f"{no_limit}[Service]\nType=oneshot\nExecStart={waits}\n")
    place(SYSTEM_DROP_IN, "[Unit]\nWants=slow-start.service\nAfter=slow-start.service\n")
    return held


PAUSES: tuple[tuple[str, ...], ...] = ((), ("--pause",))


def test_a_task_that_is_stopped_while_its_new_guest_is_not_ready_stays_stopped(
    declare: Declarations, newer: str
) -> None:
    """The operator's stop is not taken for a guest that has failed."""
    web = declare("web", f"{WEB}\nArgument=--count=15", rest="[Unit]\nStartLimitIntervalSec=0")
    ok("systemctl", "start", web)
    late = ("--ready", "console:count 200$", "--timeout", "1min")  # after some seconds, each time that it starts
    for pause in PAUSES:
        eventually(is_up, "it answers")
        old, pid = image_of("web"), main_pid(web)
        ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "0", *late, *pause)
        eventually(lambda pid=pid: main_pid(web) not in ("0", pid), "the task runs the new image")  # type: ignore[misc]
        ok("systemctl", "stop", web)
        stays_stopped(old)


def test_a_stop_before_the_task_is_started_again_is_not_overridden(slow_start: Path, web: str, newer: str) -> None:
    """Its job takes the place of the restart, which waits for another unit; also where the update is killed."""
    old = image_of("web")
    for pause, is_killed in (*((pause, False) for pause in PAUSES), ((), True)):
        pid = main_pid(web)
        slow_start.touch()
        ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "0", *pause)
        eventually(lambda pid=pid: main_pid(web) != pid, "it is being started again")  # type: ignore[misc]
        if is_killed:
            ok("systemctl", "kill", "--signal=STOP", "--kill-whom=main", UPDATE)
        ok("systemctl", "stop", web)
        if is_killed:
            ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UPDATE)
        slow_start.unlink()
        stays_stopped(old)


def test_a_task_that_starts_with_neither_image_is_repaired_by_the_hint(web: str, newer: str, place: Files) -> None:
    """The new guest has the ports meanwhile: the task is down, its service is not."""
    broken = place(SYSTEM_DROP_IN, BROKEN)  # the daemon-reload of the update loads it
    failed = update(newer, "--watch", "0")
    broken.unlink()
    assert failed.returncode == 125
    assert "task web starts neither with the new image" in failed.stderr
    assert is_up()
    hint = re.search(r"the cause, and then: (systemctl restart web && solo5ctl rm --force web\.next)\n", failed.stderr)
    assert hint, failed.stderr
    systemctl("daemon-reload")
    ok("systemctl", "reset-failed", web)
    ok("systemctl", "start", web)
    assert "task web.next has the published ports of task web: expected no other task with them" in update(newer).stderr
    ok("systemctl", "stop", web)
    ok("sh", "-c", hint[1])
    whole(web)


def test_a_task_with_the_name_of_an_updates_second_guest_keeps_its_ports(declare: Declarations, run: Runner) -> None:
    other = run("net.spt", "{mirage}", name="web.next", options=("--publish", f"{ECHO}:80"))
    says(other, "serving")
    ok("systemctl", "start", declare("web", WEB))
    for port in (PORT, ECHO):
        eventually(lambda port=port: answers(port), f"{port} answers")  # type: ignore[misc]


def test_the_declaration_has_the_condition_and_the_time_in_which_a_guest_has_to_become_ready(
    declare: Declarations, newer: str
) -> None:
    ok("systemctl", "start", declare("web", f"{WEB}\nReady=udp:7\nTimeout=5s"))
    done = updated(newer, "--watch", "0")
    assert re.search(r"the published ports: udp 10\.[0-9.]+:7 answers", done)
    declare("web", f"{WEB}\nReady=tcp:81\nTimeout=1s")
    assert "the new guest was not ready within 1 s (tcp:81)" in update(f"{GUESTS}/net.spt").stderr
    whole("web.service")


@pytest.mark.parametrize(("port", "ends"), [(PORT, False), (ECHO, True)])
def test_ports_follow_the_declaration_when_the_guest_that_has_them_has_ended(
    web: str, newer: str, place: Files, *, port: int, ends: bool
) -> None:
    broken = place(SYSTEM_DROP_IN, BROKEN)
    assert "starts neither" in update(newer, "--watch", "0").stderr
    broken.unlink()
    if ends:
        ok("systemctl", "stop", "solo5-networkd")  # nothing of ours sees the end
        ok("systemctl", "kill", "--signal=KILL", "solo5-task-web.next.service")
    text = (ETC / "web.unikernel").read_text()
    (ETC / "web.unikernel").write_text(text.replace(f"Publish={PORT}", f"Publish={port}"))
    systemctl("daemon-reload")
    ok("systemctl", "reset-failed", web)
    ok("systemctl", "start", web)
    if not ends:
        assert inspect("web")["ports"] == []
        ok("solo5ctl", "rm", "--force", "web.next")
    eventually(lambda: answers(port), "it has its declared port")
    assert [each["host_port"] for each in inspect("web")["ports"]] == [port]
    assert "no task is named 'web.next'" in sh("solo5ctl", "inspect", "web.next").stderr


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_be_updated_is_refused_in_one_sentence(declare: Declarations, newer: str) -> None:
    unit = declare("web", WEB)
    assert "task web does not run." in update(newer).stderr
    ok("systemctl", "start", unit)
    passing = Path(shutil.copy(newer, "/tmp/newer.spt"))
    assert "may be gone at the next boot" in update(str(passing)).stderr
    passing.unlink()
    ok("solo5ctl", "run", "--detach", "--name", "web.next", f"{GUESTS}/sleeper.spt")
    assert "task name 'web.next' is taken" in update(newer).stderr
    ok("solo5ctl", "rm", "--force", "web.next")
    whole(unit)


def edited(declare: Declarations, lines: str) -> None:
    declare.write("web", f"[Unikernel]\nImage={GUESTS}/net.spt\n{WEB}\n{lines}\n")


def test_edits_that_are_not_in_effect_are_no_part_of_an_update(web: str, newer: str, declare: Declarations) -> None:
    """The daemon-reload of the update would put them into effect, and what was not checked may not start."""
    before = main_pid(web)
    edited(declare, "Memmory=64M")
    for done in (update(newer), update(newer, "--pause"), sh("systemctl", "reload", web)):
        assert done.returncode != 0
    assert "/etc/solo5/web.unikernel:6: Memmory= is not a known setting" in update(newer).stderr
    systemctl("daemon-reload")
    assert "/etc/solo5/web.unikernel:6: Memmory= is not a known setting" in update(newer).stderr, "in effect"
    edited(declare, "CPUs=1")
    refused = update(newer)
    assert "the declaration of task web has changed since the last daemon-reload: expected the one in" in refused.stderr
    systemctl("daemon-reload")
    ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "3s")
    is_moved()
    edited(declare, "Memmory=64M")
    whole(web)
    assert main_pid(web) == before
    logged("update: /etc/solo5/web.unikernel:6: ", "-u", web)
    edited(declare, "CPUs=1")
    updated(newer, "--watch", "0")
    assert inspect("web")["image"] == newer
    whole(web)


@pytest.fixture
def dependents(place: Files) -> Iterator[list[str]]:
    """Units that a restart of the task restarts, each by another dependency."""
    units = {f"by-{kind.lower()}.service": kind for kind in ("Requires", "BindsTo", "PartOf")}
    for name, kind in units.items():
        text = f"[Unit]\n{kind}=web.service\nAfter=web.service\n[Service]\nExecStart=sleep infinity\n"
        place(f"/run/systemd/system/{name}", text)
    systemctl("daemon-reload")
    yield list(units)
    ok("systemctl", "stop", *units)


def are_active(units: list[str]) -> bool:
    return all(unit_property(unit, "ActiveState") == "active" for unit in units)


def test_an_update_leaves_units_that_it_restarts_running_also_when_a_start_fails_once(
    web: str, newer: str, place: Files, dependents: list[str]
) -> None:
    ok("systemctl", "start", *dependents)
    done = updated(newer, "--watch", "0")
    assert f"units that are restarted with web.service: {', '.join(sorted(dependents))}" in done
    eventually(lambda: are_active(dependents), "they run")
    other, failed = str(GUESTS / "net.spt"), Path("/run/failed-once")
    place(SYSTEM_DROP_IN, f"[Service]\nExecStartPre=+/bin/sh -c '[ -e {failed} ] || {{ : >{failed}; exit 1; }}'\n")
    systemctl("daemon-reload")
    failed_start = update(other, "--watch", "0")
    assert failed_start.returncode != 0
    assert "web.service did not start" in failed_start.stderr
    assert "starts neither" not in failed_start.stderr
    assert image_of("web") == newer, "the earlier one"
    whole(web)
    eventually(lambda: are_active(dependents), "what depends on the task runs")
    failed.unlink()


def test_a_frozen_task_is_refused_with_what_to_type(web: str, newer: str) -> None:
    assert update(newer, "--watch", "0", "--pause").returncode == 0, "so that there is an earlier image"
    before = main_pid(web)
    ok("systemctl", "freeze", web)
    back = ("solo5ctl", "rollback", "web")
    assert sh("systemctl", "reload", "web").returncode
    for refused in (update(newer), update(newer, "--pause"), sh(*back, timeout=120)):
        assert "task web is frozen." in refused.stderr
        assert "solo5ctl thaw web" in refused.stderr
    logged("task web is frozen", "--unit=solo5-update@web")
    ok("solo5ctl", "thaw", "web")
    whole(web)
    assert main_pid(web) == before


@pytest.mark.parametrize("disk", ["files:/srv/site", "/srv/site/page,ephemeral"])
def test_a_task_whose_disks_are_its_own_needs_no_pause(
    declare: Declarations, images: Path, place: Files, disk: str
) -> None:
    place("/srv/site/page", bytes(1 << 20))
    unit = declare("web", f"{WEB}\nBlock=storage={disk}", image="netdisk.spt")
    ok("systemctl", "start", unit)
    eventually(is_up, "it answers")
    newer = images / "newer.spt"
    newer.write_bytes(Path(f"{GUESTS}/netdisk.spt").read_bytes() + b"\0newer")
    before = main_pid(unit)
    done = updated(str(newer), "--watch", "0")
    assert "the new guest, task web.next, has the published ports" in done
    assert (image_of("web"), main_pid(unit) != before) == (str(newer), True)
    whole(unit)
    declare.remove()
    left = (Path("/var/lib/solo5/copies"), Path("/run/solo5/memory"))
    eventually(lambda: not [each for path in left for each in path.glob("*")], "no copy and no archive is left")


def test_a_task_with_a_disk_is_updated_with_a_pause_only(declare: Declarations, images: Path) -> None:
    unit = declare("web", f"{WEB}\nBlock=storage=disk:update,size=1M,create", image="netdisk.spt")
    ok("systemctl", "start", unit)
    eventually(is_up, "it answers")
    newer = images / "newer.spt"
    newer.write_bytes(Path(f"{GUESTS}/netdisk.spt").read_bytes() + b"\0newer")
    refused = update(str(newer))
    assert "cannot be updated without a pause, since disk storage has one writer: expected --pause" in refused.stderr
    before = main_pid(unit)
    assert "hello.spt has the devices none: expected" in update(f"{GUESTS}/hello.spt", "--pause").stderr
    assert main_pid(unit) == before, "it is not stopped for an image that cannot take its place"
    done = updated(str(newer), "--pause", "--watch", "0")
    assert re.search(r"after a pause of [0-9]+\.[0-9]{2} s$", done, re.MULTILINE)
    assert image_of("web") == str(newer)
    whole(unit)
    bad = update(f"{GUESTS}/netdisk.spt", "--pause", "--ready", "tcp:81", "--timeout", "1s")
    assert "not ready within 1 s" in bad.stderr
    assert image_of("web") == str(newer)
    whole(unit)
