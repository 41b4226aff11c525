"""`systemctl isolate`, as after rescue mode, leaves tasks and outcomes alone, as it leaves the scopes of podman."""

from tests.machine.conftest import Runner, inspect, ok, says, unit_property


def test_tasks_and_outcomes_survive_isolate(run: Runner) -> None:
    running = run("net.spt", "{mirage}", options=("--publish", "8080:80"))
    ended = run("hello.spt", "exit=3")
    ok("solo5ctl", "wait", ended)
    says(running, "serving")
    before = inspect(running)
    networkd = unit_property("solo5-networkd.service", "MainPID")
    ok("systemctl", "isolate", "default.target")
    assert inspect(running)["pid"] == before["pid"]
    assert inspect(ended)["outcome"]["exit_code"] == 3
    assert unit_property("solo5-networkd.service", "MainPID") == networkd
