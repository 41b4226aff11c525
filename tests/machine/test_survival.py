"""One guest and one client with one connection, through everything that can happen to what started them.

What dies is killed as it is, with SIGKILL; what is restarted is waited for. After each, in a row: the same process
runs, the first connection is up, no message and no datagram is missing, and no line of the console.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import (
    Files,
    Machine,
    Outside,
    Runner,
    cable,
    console,
    eventually,
    inspect,
    kill_main,
    ok,
    says,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.declared import Declarations
from tests.machine.test_declared import INSTALL, WEB
from tests.machine.test_package import deb
from tests.machine.traffic import Traffic, traffic

NAME = "survivor"
SERVING = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}", "--count=100")
PUBLISHED = ("-p", "7007:7", "-p", "7007:7/udp")


def package_is_installed_again() -> None:
    ok("dpkg", "--install", deb(), timeout=300)


def later_package(directory: Path) -> Path:
    """Build the installed package's files as a later version, in a directory."""
    ok("dpkg-deb", "--raw-extract", deb(), str(directory / "tree"))
    control = directory / "tree/DEBIAN/control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+later", control.read_text()))
    later = directory / "later.deb"
    ok("dpkg-deb", "--build", "-Znone", str(directory / "tree"), str(later))
    return later


def package_is_upgraded_and_goes_back(directory: Path) -> None:
    """The same files, as a later version and as the first one again."""
    ok("dpkg", "--install", str(later_package(directory)), timeout=300)
    assert ok("dpkg-query", "--show", "--showformat=${Version}", "solo5-systemd").endswith("+later")
    package_is_installed_again()


def counted(lines: str) -> list[int]:
    """The numbers that a guest with `--count=` has printed."""
    return [int(number) for number in re.findall(r"(?m)^count (\d+)$", lines)]


def complete(lines: str) -> bool:
    numbers = counted(lines)
    return numbers == list(range(1, len(numbers) + 1))


@pytest.fixture(scope="module")
def outside(booted: None) -> Iterator[Outside]:
    with cable(Outside()) as other:
        yield other


@pytest.fixture(scope="module")
def client(outside: Outside) -> Iterator[Traffic]:
    run = Runner()
    try:
        run("net.hvt", *SERVING, name=NAME, options=PUBLISHED)
        says(NAME, "serving")
        with traffic(outside, outside.here, 7007) as subject:
            yield subject
    finally:
        ok("solo5ctl", "rm", "--force", NAME)


DISTURBANCES: dict[str, Callable[[], object]] = {
    "networkd is killed": partial(kill_main, "solo5-networkd.service"),
    "systemd executes itself anew": partial(systemctl, "daemon-reexec"),
    "systemd reads its units anew": partial(systemctl, "daemon-reload"),
    "the bus is restarted": partial(systemctl, "restart", "dbus"),
    "journald is restarted": partial(systemctl, "restart", "systemd-journald"),
}


@pytest.mark.parametrize("disturb", DISTURBANCES.values(), ids=DISTURBANCES)
def test_a_running_guest_survives(client: Traffic, machine: Machine, disturb: Callable[[], object]) -> None:
    notices_nothing(client, machine, disturb)


def test_a_running_guest_survives_an_upgrade(client: Traffic, machine: Machine, tmp_path: Path) -> None:
    notices_nothing(client, machine, lambda: package_is_upgraded_and_goes_back(tmp_path))


def notices_nothing(client: Traffic, machine: Machine, disturb: Callable[[], object]) -> None:
    machine.expect("D-Bus|bus|Disconnected|Failed with result|Main process exited")
    before = inspect(NAME)
    client.flows()
    disturb()
    client.flows()
    said = len(counted(console(NAME)))
    eventually(lambda: len(counted(console(NAME))) > said, "its console goes on")
    assert complete(console(NAME))
    after = inspect(NAME)
    assert (after["pid"], after["phase"], after["nics"]) == (before["pid"], "running", before["nics"])


def test_the_client_would_tell_of_a_broken_link_and_of_another_guest(run: Runner, outside: Outside) -> None:
    name = run("net.spt", *SERVING, options=("-p", "7008:7", "-p", "7008:7/udp"))
    says(name, "serving")
    with traffic(outside, outside.here, 7008, patience=1) as client:
        client.flows()
        ok("ip", "link", "set", "cable", "down")
        eventually(lambda: client.tally().lost, "datagrams are missing")
        ok("ip", "link", "set", "cable", "up")
        client.goes_on()
        ok("solo5ctl", "rm", "--force", name)
        run("net.spt", *SERVING, name=name, options=("-p", "7008:7", "-p", "7008:7/udp"))
        eventually(lambda: client.tally().broken, "another guest of that name is not taken for the first")


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
