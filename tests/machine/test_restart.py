"""A service that systemd starts again, with no caller of ours alive, has its network, ports and disk as before."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import (
    NOBODY,
    Files,
    Machine,
    Runner,
    answers,
    eventually,
    given,
    inspect,
    kill_main,
    ok,
    says,
    sh,
    systemctl,
    unit_property,
)

from solo5_systemd.storage.locks import holders

IPV4 = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")
PORT = 8600
NETWORKD = "solo5-networkd.service"
STATE = Path("/run/solo5/network")
REFUSED = r"solo5-network@|cannot be attached: |Call failed: |^(Publish another|Leave it out|Start the task again)"
"""Lines of a failed network unit: of PID 1, for the task's unit, and the sentence and the hint of busctl."""


def service(name: str) -> str:
    return f"solo5-task-{name}.service"


def network(name: str) -> str:
    return f"solo5-network@{name}.service"


def tap(name: str) -> str:
    return str(inspect(name)["nics"][0]["tap"])


def web(run: Runner, name: str = "web", port: int = PORT, options: tuple[str, ...] = ()) -> str:
    guest = "netdisk.hvt" if options else "net.hvt"
    task = run(guest, *IPV4, name=name, options=("-p", f"{port}:80", *options))
    eventually(lambda: answers(port), f"{task} answers")
    return task


RECORD = STATE / "tasks/web.json"
DROP_IN = Path(f"/run/systemd/system/{service('web')}.d/test.conf")


def calls(unit: str) -> bool:
    """Return whether a process of a unit is busctl."""
    processes = Path(f"/sys/fs/cgroup{unit_property(unit, 'ControlGroup')}/cgroup.procs").read_text().split()
    return "busctl\n" in [Path(f"/proc/{pid}/comm").read_text() for pid in processes]


def restart_policy() -> None:
    DROP_IN.write_text("[Service]\nRestart=always\n")
    ok("systemctl", "daemon-reload")
    kill_main(service("web"))
    DROP_IN.write_text("")
    ok("systemctl", "daemon-reload")


def service_killed_in_the_call() -> None:
    service_pid = unit_property(NETWORKD, "MainPID")
    ok("kill", "-STOP", service_pid)
    ok("systemctl", "restart", "--no-block", service("web"))
    eventually(lambda: unit_property(network("web"), "ActiveState") == "activating", "its network is being attached")
    eventually(lambda: calls(network("web")), "the call is made")
    ok("kill", "-KILL", service_pid)
    eventually(lambda: unit_property(service("web"), "ActiveState") == "active", "it is started")


def record_removed_and_service_killed() -> None:
    RECORD.unlink()
    kill_main(NETWORKD)
    ok("systemctl", "restart", service("web"))


def start_when_all_has_left() -> None:
    ok("systemctl", "stop", service("web"))
    eventually(lambda: unit_property(NETWORKD, "ActiveState") == "inactive", "solo5-networkd has left")
    assert sh("ip", "link", "show", "solo5-default").returncode != 0
    ok("systemctl", "start", service("web"))


def start_by_another_unit() -> None:
    ok("systemctl", "stop", service("web"))
    eventually(lambda: not RECORD.exists(), "it is released")
    needs = (f"--property=Requires={service('web')}", f"--property=After={service('web')}")
    ok("systemd-run", "--wait", *needs, "true")


RESTART, NETWORK_UNIT = f"systemctl restart {service('web')}", f"systemctl restart {network('web')}"

WITH_DISK = (
    RESTART,
    f"{RESTART}; {RESTART}",
    "solo5ctl restart web",
    "solo5ctl freeze web; solo5ctl restart web",
    NETWORK_UNIT,
    f"{NETWORK_UNIT}; {RESTART}",
    restart_policy,
    f"systemctl stop {NETWORKD}; {RESTART}",
    f"systemctl kill --signal=KILL --kill-whom=main {NETWORKD}; {RESTART}",
    service_killed_in_the_call,
    f"rm {RECORD}; {RESTART}",
    record_removed_and_service_killed,
)
"""As long as the unit has not ended, PID 1 has the descriptor of the disk locks (on Debian 12 not with Restart=)."""

WITHOUT_DISK = (
    f"ip link delete TAP; {RESTART}",  # which ends this guest
    f"systemctl stop {NETWORKD}; ip link delete TAP; {RESTART}",
    restart_policy,
    f"systemctl stop {service('web')}; systemctl start {service('web')}",
    start_when_all_has_left,
    start_by_another_unit,
)


@pytest.mark.parametrize("steps", [WITH_DISK, WITHOUT_DISK], ids=["with a disk", "without a disk"])
def test_a_task_that_systemd_starts_again_has_all_that_it_had(
    machine: Machine, run: Runner, place: Files, tmp_path: Path, steps: Sequence[str | Callable[[], None]]
) -> None:
    machine.expect("network repaired|killed|Failed with result|removing orphaned taps")
    disk = given(tmp_path / "disk.img", b"first sector\0".ljust(4096, b"\0"))
    has_disk = steps is WITH_DISK
    place(DROP_IN)
    name = web(run, options=("--block", f"storage={disk}") if has_disk else ())
    before = inspect(name)
    for again in steps:
        if again is restart_policy and has_disk and int(systemctl("--version").split()[1]) < 254:
            continue
        pid = unit_property(service(name), "MainPID")
        sh("systemctl", "reset-failed", service(name), network(name))  # their limits of starts
        if isinstance(again, str):
            ok("sh", "-ec", again.replace("TAP", tap(name)))
        else:
            again()
        eventually(partial(answers, PORT), f"its port is answered, {again}")
        after = inspect(name)
        assert unit_property(service(name), "MainPID") not in ("0", pid), f"{again}: it is another process"
        assert (after["nics"], after["ports"]) == (before["nics"], before["ports"]), again
        assert RECORD.exists()
        if has_disk:
            says(name, "first sector")
            assert name in holders().values(), again
    if has_disk:
        assert "is in use by another task" in run.fail("--block", f"storage={disk}", "/srv/guests/disk.spt").stderr


def test_a_port_that_another_task_has_taken_meanwhile_is_named_by_systemctl_status(
    machine: Machine, run: Runner
) -> None:
    machine.expect(REFUSED)
    name = web(run)
    ok("systemctl", "stop", service(name))
    eventually(lambda: not (STATE / f"tasks/{name}.json").exists(), "it is released")
    web(run, name="other")
    assert sh("systemctl", "start", service(name)).returncode != 0
    sentence = "the network of task web cannot be attached: port 8600/tcp is taken by task other: "
    eventually(lambda: sentence in sh("systemctl", "status", "--full", service(name)).stdout, "the reason is shown")
    assert answers(PORT), "the other is not affected"
    ok("solo5ctl", "rm", "--force", "other")
    ok("systemctl", "start", service(name))
    eventually(partial(answers, PORT), "its port is answered, now that it is free")


def test_a_start_of_ours_executes_no_process_for_the_attach(run: Runner) -> None:
    name = web(run, name="prepared")
    executed = ("journalctl", "--quiet", "--output=cat", f"_SYSTEMD_UNIT={network(name)}")
    assert unit_property(network(name), "ConditionResult") == "no"
    assert unit_property(network(name), "ExecMainStartTimestampMonotonic") == "0"
    assert ok(*executed) == ""
    assert [path.name for path in (STATE / "requests").iterdir()] == [f"{name}.json"], "the mark is gone"
    ok("systemctl", "restart", service(name))
    assert unit_property(network(name), "ConditionResult") == "yes"


def test_a_mark_of_a_killed_caller_has_no_effect(run: Runner) -> None:
    name = web(run)
    mark = STATE / f"requests/{name}.start"
    ended = unit_property(service(name), "MainPID")
    mark.symlink_to(f"/proc/{ended}/fd/0/{name}.json")
    ok("systemctl", "restart", network(name))
    eventually(partial(answers, PORT), "its port is answered")
    mark.unlink()
    mark.symlink_to(f"/proc/1/fd/0/{name}.json")  # another process with the number of the caller
    ok("systemctl", "restart", network(name))
    eventually(partial(answers, PORT), "its port is answered")
    ok("solo5ctl", "rm", "--force", name)
    assert list((STATE / "requests").iterdir()) == [], "removed with the task"


def test_the_request_lives_as_long_as_the_unit(run: Runner) -> None:
    name = web(run)
    request = STATE / f"requests/{name}.json"
    assert (request.stat().st_mode & 0o777, request.stat().st_uid) == (0o600, 0)
    assert (STATE.stat().st_mode & 0o777, STATE.stat().st_uid) == (0o700, 0)
    ok("solo5ctl", "stop", name)
    eventually(lambda: not (STATE / f"tasks/{name}.json").exists(), "it is released")
    assert request.exists()
    ok("solo5ctl", "rm", name)
    assert not request.exists()


def test_an_attach_for_a_unit_that_is_gone_or_for_no_task_leaves_nothing(machine: Machine, run: Runner) -> None:
    """Root only can do it. That what is attached without a run is released: contract/test_network_ends.py."""
    machine.expect(REFUSED)
    name = web(run)
    ok("systemctl", "stop", service(name))
    sh("systemctl", "reset-failed", service(name))  # hvt ends a stop with 1
    ok("systemctl", "stop", f"solo5-outcome@{name}.target")
    eventually(lambda: unit_property(service(name), "LoadState") == "not-found", "its unit is gone")
    eventually(lambda: not (STATE / f"tasks/{name}.json").exists(), "it is released")
    assert (STATE / f"requests/{name}.json").exists(), "until gc"
    ok("systemctl", "start", network(name))
    assert json.loads((STATE / f"tasks/{name}.json").read_text())["state"] == "attached"
    for odd in ("never", r"\x2e\x2e", "..", r"a\x2fb", "-h", "a:b", "x" * 200, "$HOME"):
        assert sh("systemctl", "start", f"solo5-network@{odd}.service").returncode != 0, odd
    ok("busctl", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1", "Release", "s", name)
    ok("solo5ctl", "gc")
    assert list((STATE / "requests").iterdir()) == []


def test_a_local_user_cannot_start_a_network_unit(run: Runner) -> None:
    name = web(run)
    before = inspect(name)["nics"]
    for action in ("start", "stop", "restart"):
        refused = sh(*NOBODY, "systemctl", "--no-ask-password", action, network(name))
        assert (refused.returncode, "Access denied" in refused.stderr) == (4, True), refused.stderr
    assert sh(*NOBODY, "ls", str(STATE / "requests")).returncode != 0
    assert (inspect(name)["nics"], answers(PORT)) == (before, True)


def test_a_damaged_request_is_refused(machine: Machine, run: Runner) -> None:
    machine.expect(f"cannot be read|{REFUSED}")
    name = web(run)
    request = STATE / f"requests/{name}.json"
    for damaged in ("", '{"version": 1}', "{" * 5000):
        ok("systemctl", "stop", service(name))
        eventually(lambda: not (STATE / f"tasks/{name}.json").exists(), "it is released")
        request.write_text(damaged)
        assert sh("systemctl", "start", service(name)).returncode != 0
    assert f"the network of task {name} cannot be attached: task {name} has no reservation" in ok(
        "journalctl", "-u", service(name)
    )
