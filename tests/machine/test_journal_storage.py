"""A journald that stores no consoles, as on small disks: what looks empty has its reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Runner, ok, sh
from tests.machine.declared import declarations

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


def test_an_update_that_waits_for_a_line_has_the_reason(dropping: None) -> None:
    with declarations() as declare:
        unit = declare("web", "Argument={mirage}\nPublish=8095:80")
        ok("systemctl", "start", unit)
        words = ("--ready", "console:serving", "--timeout", "2", "web", f"{GUESTS}/net.spt")
        done = sh("solo5ctl", "update", *words)
        assert done.returncode != 0
        assert "stores no lines of level info" in done.stderr
        assert sh("systemctl", "is-active", unit).stdout == "active\n"
