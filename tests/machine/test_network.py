"""Networks end to end: real guests, clients on other links, and attacks."""

import errno
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Files,
    Machine,
    Outside,
    Runner,
    address,
    console,
    eventually,
    inspect,
    kill_main,
    lease,
    ok,
    says,
    sh,
    udp,
    unit_property,
)

IPV4 = "--ipv4={net.service.ipv4_cidr}"
GATEWAY = "--ipv4-gateway={net.service.gateway4}"
NETWORKD = "solo5-networkd.service"


def web(run: Runner, *more: str, target: str = "hvt", options: tuple[str, ...] = (), name: str | None = None) -> str:
    """Run a guest that serves TCP 80 and UDP 7."""
    task = run(f"net.{target}", IPV4, GATEWAY, *more, options=options, name=name)
    eventually(lambda: sh("ping", "-c1", "-W1", address(task)).returncode == 0, f"{task} answers a ping")
    return task


@pytest.fixture
def routed(place: Files) -> None:
    """A client with a route reaches guests at their own addresses."""
    place("/etc/solo5/machine-test.toml", "[network.default]\nrouted = true\n")


@pytest.mark.vm  # a container has no such setting
def test_the_neighbour_table_has_room_for_the_guests(run: Runner) -> None:
    """The limits of a host that can keep 32 neighbours, which two guests and their clients could fill."""
    limits = [Path(f"/proc/sys/net/ipv4/neigh/default/gc_thresh{number}") for number in (1, 2, 3)]
    before = [path.read_text() for path in limits]
    for path, value in zip(limits, ("4", "16", "32"), strict=True):
        path.write_text(value)
    sh("systemctl", "restart", "solo5-networkd")  # it reads the limits when they may not suffice
    web(run)
    assert [int(path.read_text()) for path in limits] == [128, 512, 1024]
    for path, text in zip(limits, before, strict=True):
        path.write_text(text)


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_published_ports_answer_from_outside_from_here_and_by_loopback(
    run: Runner, outside: Outside, target: str
) -> None:
    task = web(run, target=target, options=("-p", "8080:80", "-p", "7007:7/udp"))
    assert outside.sh("ping", "-c2", "-W2", address(task)).returncode == 0
    assert "200" in outside.ok("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://{outside.here}:8080/")
    assert outside.udp(outside.here, 7007, "from outside") == "from outside"
    for here in (outside.here, "127.0.0.1"):
        assert ok("curl", "-sS", "--max-time", "10", f"http://{here}:8080/")
        assert udp(here, 7007, "from here") == "from here"


def test_guest_reaches_the_outside_by_the_machines_address(run: Runner, outside: Outside) -> None:
    web(run, f"--send={outside.there}:9999")
    assert outside.sender(9999) == outside.here, "masqueraded"


def _pool(network: str) -> dict[str, object]:
    [found] = [each for each in json.loads(ok("solo5ctl", "network", "ls", "--json")) if each["name"] == network]
    return {key: found[key] for key in ("in_use", "free", "ipv4")}


def test_two_nics_on_two_networks(run: Runner, place: Files) -> None:
    place("/etc/solo5/machine-test.toml", '[network.back]\nipv4 = "10.66.0.0/24"\n')
    assert _pool("back") == {"in_use": 0, "free": 253, "ipv4": "10.66.0.0/24"}, "of a range that no task uses yet"
    name = run(
        "net2.spt", IPV4, "--management-ipv4={net.management.ipv4_cidr}",
        options=("--net", "service=default", "--net", "management=back,ip=10.66.0.9"),
    )  # fmt: skip
    eventually(lambda: sh("ping", "-c1", "-W1", address(name)).returncode == 0, "the first NIC answers")
    eventually(lambda: sh("ping", "-c1", "-W1", "10.66.0.9").returncode == 0, "the second NIC answers")
    assert _pool("back") == {"in_use": 1, "free": 252, "ipv4": "10.66.0.0/24"}
    ok("solo5ctl", "rm", "--force", name)


def test_one_port_for_one_task_however_many_ask_at_once(machine: Machine, run: Runner) -> None:
    """As for any value: tests/contract/test_network_life.py, and tests/machine/nomad/test_tasks.py."""
    names = [f"rival-{i}" for i in range(8)]
    run.names.extend(names)

    def start(name: str) -> subprocess.CompletedProcess[str]:
        options = ("--name", name, "-m", "16M", "-p", "8080:80")
        return sh("solo5ctl", "run", "-d", *options, f"{GUESTS}/net.spt", IPV4, timeout=300)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(start, names))
    assert sum(r.returncode == 0 for r in results) == 1
    assert all("8080" in r.stderr for r in results if r.returncode)


def test_network_service_is_for_root_only_and_has_no_more_power_than_it_needs(run: Runner) -> None:
    task = web(run)
    call = "busctl call org.solo5.Network1 /org/solo5/Network1 org.solo5.Network1".split()
    for call_of in (("Leases",), *((method, "s", task) for method in ("Attach", "Sleep", "Wake"))):
        done = sh(*NOBODY, *call, *call_of)
        assert (done.returncode != 0, "denied" in done.stderr.lower()) == (True, True), done.stderr
    assert Path(f"/proc/{inspect(task)['pid']}/stat").read_text().rpartition(")")[2].split()[0] != "T", "it is awake"
    assert sh(*NOBODY, "ls", "/run/solo5/network").returncode != 0
    for verb in (f"inspect --json {task}", "ps --all --json", "stats --no-stream", "metrics"):
        shown = sh(*NOBODY, "solo5ctl", *verb.split())
        assert (shown.returncode, shown.stderr) == (0, "")
        assert (task in shown.stdout, "10.153." in shown.stdout) == (True, False)
    examined = sh(*NOBODY, "solo5ctl", "doctor")
    assert ("orphans" in examined.stdout, examined.stderr) == (True, "")
    assert "tap s5-" not in examined.stdout, "what cannot be read is no proof that a tap is nobody's"
    pid = unit_property(NETWORKD, "MainPID")
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    assert effective is not None
    expected = 1 << 12 | 1 << 10 | 1 << 13 | 1 << 21
    words = "CAP_NET_ADMIN, CAP_NET_BIND_SERVICE to hold published ports, CAP_SYS_ADMIN to enter namespaces of groups"
    assert int(effective[1], 16) == expected, f"{words}, CAP_NET_RAW to ask guests for their addresses"
    assert json.loads(ok("systemd-analyze", "security", "--json=short", NETWORKD))


_ACTIVATE = """
import asyncio
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH, connect
from solo5_systemd.dbus.messages import Message

async def main():
    bus = await connect()
    print("connected", flush=True)
    while True:
        for _ in range(600):
            body = ["org.solo5.Network1", 0]
            bus.send(Message(destination=BUS, path=BUS_PATH, interface=BUS, member="StartServiceByName",
                             signature="su", body=body))
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.fixture
def activations(place: Files) -> Iterator[None]:
    """A local user requests the activation of the stopped network service again and again, more often than the bus has
    room for."""
    text = "[Service]\nExecStartPre=/bin/sh -c 'trap \"exit 0\" TERM; sleep 0.5 & wait'\n"
    place("/run/systemd/system/solo5-networkd.service.d/slow.conf", text)
    ok("systemctl", "daemon-reload")
    with subprocess.Popen([*NOBODY, "python3", "-I", "-c", _ACTIVATE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        yield
        process.kill()


@pytest.mark.usefixtures("activations")
def test_a_local_user_does_not_use_up_the_activations_of_the_network_service(machine: Machine, run: Runner) -> None:
    # The second stop is one of an activation.
    machine.expect(r"solo5-networkd\.service: (Control process exited, code=killed|Failed with result 'signal')")
    ok("systemctl", "stop", "solo5-networkd")
    task = web(run)
    eventually(lambda: sh("systemctl", "stop", "solo5-networkd").returncode == 0, "no call starts it meanwhile")
    ok("systemctl", "restart", f"solo5-task-{task}.service")
    eventually(lambda: sh("ping", "-c1", "-W1", address(task)).returncode == 0, f"{task} answers a ping")


def can_bind(port: int) -> bool:
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            late.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True


@contextmanager
def wanted(port: int) -> Iterator[list[bool]]:
    """Try to bind the port in a loop; yields the list of results."""
    tried: list[bool] = []
    over = threading.Event()

    def insist() -> None:
        while not over.wait(0.001):
            tried.append(can_bind(port))

    insisting = threading.Thread(target=insist)
    insisting.start()
    try:
        yield tried
    finally:
        over.set()
        insisting.join()


def test_a_published_port_is_held_over_a_kill_a_restart_and_another_pid_1(
    machine: Machine, run: Runner, outside: Outside
) -> None:
    machine.expect("killed|Failed with result")
    task = web(run, options=("-p", "8500:80", "-p", "127.0.0.1:8501:7/udp"))
    assert unit_property(NETWORKD, "NFileDescriptorStore") == "1", "both ports together"
    with wanted(8500) as tried:
        kill_main(NETWORKD)
        ok("systemctl", "restart", NETWORKD)
        ok("systemctl", "daemon-reexec")
        kill_main(NETWORKD)
        ok("systemctl", "restart", NETWORKD)
        eventually(lambda: len(tried) > 100, "the other process has tried")
    assert not any(tried)
    assert unit_property(NETWORKD, "NFileDescriptorStore") == "1"
    assert outside.tcp(outside.here, 8500)
    assert "8501" in ok("ss", "-uln", "sport = :8501")
    ok("solo5ctl", "stop", task)
    eventually(lambda: can_bind(8500), "an ended task's port is free")
    assert unit_property(NETWORKD, "NFileDescriptorStore") == "0"
    eventually(lambda: not Path(f"/run/solo5/network/tasks/{task}.json").exists(), "its lease is released, last")
    with socket.create_server(("127.0.0.1", 8500)):
        refused = run.fail("-d", "-p", "8500:80", "/srv/guests/net.spt")
    assert refused.returncode == 125
    assert "8500/tcp is taken by another process" in refused.stderr


NOWHERE = ("--net", "service=none")


def test_it_runs_without_an_address_and_nothing_passes(run: Runner) -> None:
    name = run("net.spt", "--ipv4=10.153.77.2/24", options=NOWHERE)
    neighbour = run("net.hvt", "--ipv4=10.153.77.3/24", options=NOWHERE)
    for each in (name, neighbour):
        says(each, "serving")
        [nic] = inspect(each)["nics"]
        assert (nic["network"], nic["ipv4"], nic["gateway4"]) == ("none", None, None)
    ok("ip", "address", "add", "10.153.77.1/24", "dev", "solo5-none")
    try:
        assert sh("ping", "-c1", "-W1", "10.153.77.2").returncode == 1
        eventually(lambda: "spoofed" in ok("solo5ctl", "network", "inspect", "none"), "what it sends is dropped")
    finally:
        ok("ip", "address", "delete", "10.153.77.1/24", "dev", "solo5-none")


def details(network: str = "default") -> dict[str, object]:
    (found,) = json.loads(ok("solo5ctl", "network", network, "--json"))
    return dict(found)


def drops(task: str) -> dict[str, int]:
    leases = details()["leases"]
    assert isinstance(leases, list)
    return next(dict(each["drops"]) for each in leases if each["task"] == task)


def test_a_guest_sends_to_what_is_listed_only(run: Runner, outside: Outside) -> None:
    with (
        outside.popen("python3", "-I", "-c", _ECHO, outside.there, "9999", stdout=subprocess.PIPE) as listener,
        ended(listener),
    ):
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"ready\n"
        listed = web(
            run, f"--send={outside.there}:9999", "--verbose", options=("--egress", f"{outside.there}:9999/udp")
        )
        other = web(run, f"--send={outside.there}:9999", "--verbose", options=("--egress", "none", "-p", "8081:80"))
        eventually(lambda: "reply from" in console(listed), "the listed destination answers")
        eventually(lambda: drops(other)["egress"] > 1, "its datagrams are counted")
        assert "reply from" not in console(other)
        assert outside.tcp(outside.here, 8081), "it answers those who ask"
    assert drops(listed)["egress"] == 0
    inspected = ok("solo5ctl", "inspect", listed)
    assert f"Egress: service {outside.there}:9999/udp\n" in inspected
    assert lease(other)["egress"] == []
    text = ok("solo5ctl", "network", "default")
    assert "egress " in text
    assert f"0.0.0.0:8081->80/tcp {other}/service" in text
    metrics = ok("solo5ctl", "metrics")
    [line] = [each for each in metrics.splitlines() if f'task="{other}"' in each and 'rule="egress"' in each]
    assert line.startswith("solo5_task_network_filtered_packets_total{")
    assert int(line.rpartition(" ")[2]) > 1


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process whatever happens: Popen waits for it."""
    try:
        yield
    finally:
        process.kill()


_ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(9999)
    s.sendto(b"answer", peer)
"""
