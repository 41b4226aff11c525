"""`doctor`: the facts on the screen."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.fast.host.test_checks import GOOD, TAKEN, dependency
from tests.support.fakes.tasks import ended

from solo5_systemd.base.errors import HostError
from solo5_systemd.cli.verbs import doctor
from solo5_systemd.engine.orphans import Kind, Orphan
from solo5_systemd.host.checks import Host, Verdict
from solo5_systemd.unit.state import ActiveState

Having = Callable[..., None]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Having:
    """A good host without declarations, or one with other values."""
    monkeypatch.setattr(doctor, "ETC", tmp_path)
    monkeypatch.setattr(doctor, "overtaken_guests", tuple)

    def having(**values: object) -> None:
        async def probe() -> Host:
            return replace(GOOD, **values)  # type: ignore[arg-type]

        monkeypatch.setattr(doctor, "probe", probe)

    having()
    return having


def test_a_good_host_is_a_table_and_exit_status_0(solo5ctl: Solo5ctl) -> None:
    result = solo5ctl("doctor", root=False)
    assert result.status == 0
    assert result.out.startswith("FACT              VERDICT  VALUE\ndependencies      ok       complete\n")
    assert "    " not in {line[:4] for line in result.out.splitlines()}


def test_limited_facts_are_exit_status_0(solo5ctl: Solo5ctl, host: Having) -> None:
    host(controllers=None)
    result = solo5ctl("doctor")
    assert result.status == 0
    assert "cgroups           limited  version 1\n    Limits of tasks do not hold: boot with" in result.out


def test_a_route_that_takes_packets_is_listed(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "overtaken_guests", lambda: (TAKEN,))
    shown = f"routes            limited  {TAKEN.route} takes packets for guests of 10.88.0.0/16\n    While the network "
    assert f"{shown}is in use, this gives them back: ip -4 route replace 10.88.0.0/16" in solo5ctl("doctor").out
    monkeypatch.setattr(doctor, "overtaken_guests", lambda: pytest.fail("only root can read the leases"))
    assert "routes" not in solo5ctl("doctor", root=False).out


def test_an_orphan_is_listed_with_its_reason(solo5ctl: Solo5ctl) -> None:
    assert "orphans           ok       none" in solo5ctl("doctor").out
    solo5ctl.engine.gc.found = (Orphan(kind=Kind.LEASE, subject="web", reason="its unit is not running"),)
    result = solo5ctl("doctor")
    assert result.status == 0
    told = "orphan            limited  network lease of task web\n    Its unit is not running. Remove it: solo5ctl gc"
    assert told in result.out


def test_the_facts_are_shown_if_the_check_for_orphans_fails(
    solo5ctl: Solo5ctl, host: Having, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> tuple[Orphan, ...]:
        raise HostError("the system bus cannot be reached.")

    host(missing=(dependency("dbus_next"),))
    monkeypatch.setattr(solo5ctl.engine.gc, "orphans", away)
    result = solo5ctl("doctor")
    assert result.status == 1
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[-2:] == ["orphans limited check failed", "the system bus cannot be reached."]


def test_a_broken_host_is_exit_status_1(solo5ctl: Solo5ctl, host: Having) -> None:
    host(user=False)
    assert solo5ctl("doctor").status == 1
    facts = {fact["name"]: fact for fact in json.loads(solo5ctl("doctor", "--json").out)}
    assert facts["user solo5"]["verdict"] == "broken"
    assert facts["user solo5"]["advice"].startswith("Create it")
    assert facts["systemd"] == {"name": "systemd", "value": "257", "verdict": "ok"}


def test_verdicts_are_coloured_on_a_terminal(solo5ctl: Solo5ctl, host: Having) -> None:
    host(user=False, controllers=None)
    out = solo5ctl("doctor", terminal=True).out
    assert "\x1b[32mok     \x1b[0m" in out
    assert "\x1b[33mlimited\x1b[0m" in out
    assert "\x1b[31mbroken \x1b[0m" in out


def test_two_files_with_one_port_are_listed(tmp_path: Path) -> None:
    for name in ("one", "web@"):
        (tmp_path / f"{name}.unikernel").write_text("[Unikernel]\nImage=/a\nPublish=80:80\n")
    [fact] = doctor._declarations([])
    assert (fact.name, fact.value) == ("declarations", "2")
    (tmp_path / "two.unikernel").write_text("[Unikernel]\nImage=/a\nPublish=80:80\n")
    conflict, count = doctor._declarations([])
    assert (conflict.value, conflict.verdict) == ("published port 0.0.0.0:80/tcp", Verdict.LIMITED)
    assert "one.unikernel and in" in conflict.advice
    assert count.value == "3"


def test_a_task_whose_socket_unit_has_failed_is_listed(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    (tmp_path / "web.unikernel").write_text("[Unikernel]\nImage=/web\nIdleSec=5min\nIdleAction=stop\n")
    assert "not started for packets" not in solo5ctl("doctor").out
    solo5ctl.engine.machine.units.loaded["web.socket"] = ended().state._replace(active=ActiveState.FAILED)
    assert "web.socket has failed: see `systemctl status web.socket`" in solo5ctl("doctor").out


def test_a_task_that_could_not_start_is_listed_for_root(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    for name in ("bad", "good"):
        (tmp_path / f"{name}.unikernel").write_text(f"[Unikernel]\nImage=/{name}\n")
    solo5ctl.engine.faults = {"bad": "image '/bad' does not exist."}
    [fact] = [fact for fact in json.loads(solo5ctl("doctor", "--json").out) if fact["name"] == "declaration"]
    assert (fact["value"], fact["verdict"]) == ("bad could not start now", "limited")
    assert fact["advice"] == "image '/bad' does not exist."


def test_a_refused_declaration_is_listed_with_its_line(tmp_path: Path) -> None:
    [fact] = doctor._declarations([])
    assert (fact.name, fact.value) == ("declarations", "none")
    (tmp_path / "web.unikernel").write_text("[Unikernel]\nMemry=64M\n")
    [fact] = doctor._declarations([])
    assert (fact.name, fact.value) == ("declaration", "web")
    assert fact.advice.startswith(f"{tmp_path}/web.unikernel")
    (tmp_path / "bad.toml").write_text("[")
    [fact] = doctor._declarations([])
    assert fact.value == "check failed"
