"""A journald that stores no consoles, as on small disks: what looks empty has its reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    Runner,
    eventually,
    inspect,
    ok,
    remove_namespace,
    says,
    sh,
    unit_property,
)
from tests.machine.consoles import Consoles

CONFIGURATION = Path("/etc/systemd/journald.conf.d/small.conf")


@pytest.fixture
def dropping(request: pytest.FixtureRequest) -> Iterator[None]:
    """A journald that drops what guests print."""
    CONFIGURATION.parent.mkdir(exist_ok=True)
    CONFIGURATION.write_text(f"[Journal]\n{getattr(request, 'param', 'Storage=none')}\n")
    restart()
    yield
    CONFIGURATION.unlink()
    restart()
    assert verdict() == "ok"


def restart() -> None:
    ok("systemctl", "reset-failed", "systemd-journald")  # which may be started five times in ten seconds
    ok("systemctl", "restart", "systemd-journald")


def verdict() -> str:
    [fact] = [fact for fact in json.loads(sh("solo5ctl", "doctor", "--json").stdout) if fact["name"] == "journal"]
    return str(fact["verdict"])


@pytest.mark.parametrize("dropping", ["MaxLevelStore=warning", "Storage=none"], indirect=True)
def test_what_looks_empty_has_its_reason(dropping: None, run: Runner) -> None:
    reason = "systemd-journald.service stores no lines of level info, which consoles have"
    assert verdict() == "limited"
    done = sh("solo5ctl", "run", "--rm", f"{GUESTS}/hello.spt", "one")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"no console lines: {reason}" in done.stderr
    name = run("hello.spt", "one")
    ok("solo5ctl", "wait", name)
    assert f"no console lines: {reason}" in sh("solo5ctl", "logs", name).stderr


SETTINGS = Path("/etc/solo5/namespace.toml")
NAMESPACE = "--namespace=guests"
JOURNALD = "systemd-journald@guests.service"


@pytest.fixture
def namespace(place: Files) -> Iterator[None]:
    place(SETTINGS, 'log_namespace = "guests"\n')
    yield
    remove_namespace("guests")


def lines(name: str, *options: str) -> str:
    """Return what a journal has of a task's unit."""
    return ok("journalctl", "--quiet", "--output=cat", f"--unit=solo5-task-{name}.service", *options)


@pytest.mark.usefixtures("namespace")
def test_a_console_is_where_its_task_was_started_and_what_pid_1_writes_in_the_hosts_journal(run: Runner) -> None:
    within = run("sleeper.spt", name="t-in-namespace")  # earlier tasks of other tests' names are in the host's journal
    SETTINGS.write_text("")
    without = run("sleeper.hvt", name="t-in-no-namespace")
    for name in (within, without):
        says(name, "sleeping")
    assert "sleeping" in lines(within, NAMESPACE)
    assert "sleeping" not in lines(within)
    assert "sleeping" in lines(without)
    assert "sleeping" not in lines(without, NAMESPACE)
    assert "Started" in lines(within)
    assert (inspect(within)["log_namespace"], inspect(without).get("log_namespace")) == ("guests", None)
    ok("systemctl", "daemon-reload")
    assert unit_property(f"solo5-task-{within}.service", "LogNamespace") == "guests"
    both = lines(within, "--namespace=+guests")
    assert "sleeping" in both
    assert "Started" in both


@pytest.mark.usefixtures("namespace")
def test_an_end_is_explained_by_a_console_in_a_namespace(run: Runner) -> None:
    aborter = run("aborter.hvt")
    eventually(lambda: inspect(aborter).get("outcome"), "it ends")
    assert inspect(aborter)["outcome"]["sentence"].startswith("the guest aborted: Solo5: ABORT: aborter.c")
    done = sh("solo5ctl", "run", "--rm", f"{GUESTS}/hello.hvt", "exit=3")
    assert done.returncode == 3
    assert "argument 1: 'exit=3'" in done.stdout


@pytest.mark.usefixtures("namespace")
def test_the_relay_forwards_from_a_namespace_and_from_the_hosts_journal(consoles: Consoles, run: Runner) -> None:
    ok("systemctl", "start", JOURNALD)  # as a start does before it has the relay forward
    within, errors = consoles.forward("t-within", namespace="guests")
    run("hello.hvt", "within", name="t-within")
    SETTINGS.write_text("")
    without, others = consoles.forward("t-without")
    run("hello.hvt", "without", name="t-without")
    eventually(lambda: b"solo5_exit(0)" in within.got, "its lines come")
    eventually(lambda: b"solo5_exit(0)" in without.got, "its lines come")
    assert within.got.count(b"argument 1: 'within'\n") == without.got.count(b"argument 1: 'without'\n") == 1
    assert b"without" not in within.got
    assert errors.got == others.got == b""


@pytest.mark.usefixtures("namespace")
def test_a_journald_that_cannot_start_is_named_and_nothing_is_left() -> None:
    ok("systemctl", "mask", "--runtime", JOURNALD)
    try:
        refused = sh("solo5ctl", "run", "--name", "t-refused", f"{GUESTS}/hello.spt")
        told = sh("solo5ctl", "doctor").stdout
    finally:
        ok("systemctl", "unmask", "--runtime", JOURNALD)
    assert refused.returncode == 125
    assert JOURNALD in refused.stderr
    assert len(refused.stderr.splitlines()) <= 2
    assert "no namespace guests: its journald is masked" in told
