"""`systemctl isolate` and rescue mode leave tasks and outcomes alone, as they leave the scopes of podman."""

import pytest
from tests.machine.conftest import Files, Runner, eventually, inspect, ok, says, sh, systemctl, unit_property
from tests.machine.declared import Declarations
from tests.machine.test_declared import INSTALL, WEB


@pytest.fixture
def staying(place: Files) -> None:
    """The service of the test machine that runs these tests survives `isolate` itself."""
    place("/run/systemd/system/boot-runner.service.d/stay.conf", "[Unit]\nIgnoreOnIsolate=yes\n")
    systemctl("daemon-reload")


def test_tasks_and_outcomes_survive_isolate_and_rescue_mode(staying: None, run: Runner, declare: Declarations) -> None:
    """A declared task is like any service in rescue mode: it ends, and starts with the default target if enabled."""
    running = run("net.spt", "{mirage}", options=("--publish", "8070:80"))
    ended = run("hello.spt", "exit=3")
    ok("solo5ctl", "wait", ended)
    says(running, "serving")
    declare("web", WEB, rest=INSTALL)
    ok("systemctl", "enable", "--now", "web")
    pids = {name: inspect(name)["pid"] for name in (running, "web")}
    networkd = unit_property("solo5-networkd.service", "MainPID")
    ok("systemctl", "isolate", "default.target")
    assert {name: inspect(name)["pid"] for name in pids} == pids
    assert inspect(ended)["outcome"]["exit_code"] == 3
    assert unit_property("solo5-networkd.service", "MainPID") == networkd
    ok("systemctl", "isolate", "rescue.target")
    try:
        assert unit_property("rescue.target", "ActiveState") == "active"
        assert unit_property("web.service", "ActiveState") == "inactive"
        assert "--ipv4=" in ok("curl", "--silent", "--max-time", "5", "http://127.0.0.1:8070/")
    finally:
        ok("systemctl", "isolate", "default.target")
    assert inspect(running)["pid"] == pids[running]
    assert inspect(ended)["outcome"]["exit_code"] == 3
    eventually(lambda: unit_property("web.service", "ActiveState") == "active", "the declared task is back")
    assert sh("systemctl", "is-failed", "solo5-networkd", "solo5-relay").returncode
