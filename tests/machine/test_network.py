"""Networks end to end: real guests, clients on other links, and attacks."""

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    Machine,
    Outside,
    Runner,
    address,
    eventually,
    inspect,
    lease,
    ok,
    sh,
    udp,
)

IPV4 = "--ipv4={net.service.ipv4_cidr}"
GATEWAY = "--ipv4-gateway={net.service.gateway4}"


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


def test_forged_frames_go_nowhere(run: Runner, outside: Outside) -> None:
    """With the IPv4 address, the MAC address and by the ARP replies of three liars."""
    victim = web(run)
    true_mac, bridge = str(lease(victim)["mac"]), str(lease(victim)["bridge"])
    forged = {"--spoof-ip": address(victim), "--spoof-arp": address(victim), "--spoof-mac": true_mac}
    liars = [run("net.spt", IPV4, GATEWAY, f"{option}={value}") for option, value in forged.items()]
    with subprocess.Popen(
        ["timeout", "2", "tcpdump", "-l", "-e", "-n", "-i", bridge],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as sniffer:
        seen = sniffer.stdout.read() if sniffer.stdout else ""
    stolen = [
        line
        for line in seen.splitlines()
        for mac in (str(lease(liar)["mac"]) for liar in liars)
        if (mac in line and f" {address(victim)} " in line and "is-at" in line)
        or (mac in line and f"{address(victim)}." in line.split(" > ")[0])
    ]
    assert not stolen, "a forged frame came through"
    ok("ping", "-c2", "-W2", address(victim))
    assert true_mac in ok("ip", "neigh", "show", address(victim))


def at_once(run: Runner, names: list[str], ports: list[int]) -> list[subprocess.CompletedProcess[str]]:
    """Start so many tasks, ten at a time, each with its published port."""
    run.names.extend(names)

    def start(name: str, port: int) -> subprocess.CompletedProcess[str]:
        options = ("--name", name, "-m", "16M", "-p", f"{port}:80")
        return sh("solo5ctl", "run", "-d", *options, f"{GUESTS}/net.spt", IPV4, timeout=300)

    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(start, names, ports))


def test_twenty_at_once_from_several_processes_share_nothing(machine: Machine, run: Runner) -> None:
    names = [f"crowd-{i}" for i in range(20)]
    assert [r.stderr for r in at_once(run, names, list(range(20000, 20020))) if r.returncode] == []
    leases = [lease(name) for name in names]
    for what in ("ipv4", "mac", "tap"):
        assert len({str(each[what]) for each in leases}) == 20, what
    for name in (names[0], names[-1]):
        eventually(lambda name=name: sh("ping", "-c1", "-W1", address(name)).returncode == 0, f"{name} answers")  # type: ignore[misc]
    assert sh("solo5ctl", "rm", "--force", *names, timeout=300).returncode == 0


def test_one_port_for_one_task_however_many_ask_at_once(machine: Machine, run: Runner) -> None:
    results = at_once(run, [f"rival-{i}" for i in range(8)], [8080] * 8)
    assert sum(r.returncode == 0 for r in results) == 1
    assert all("8080" in r.stderr for r in results if r.returncode)


def test_network_service_is_for_root_only(run: Runner) -> None:
    task = web(run)
    call = "busctl call org.solo5.Network1 /org/solo5/Network1 org.solo5.Network1".split()
    for words in (("Leases",), *((method, "s", task) for method in ("Attach", "Sleep", "Wake"))):
        done = sh("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *call, *words)
        assert (done.returncode != 0, "denied" in done.stderr.lower()) == (True, True), done.stderr
    assert Path(f"/proc/{inspect(task)['pid']}/stat").read_text().rpartition(")")[2].split()[0] != "T", "it is awake"


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
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-I", "-c", _ACTIVATE)
    with subprocess.Popen(as_nobody, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        yield
        process.kill()


@pytest.mark.usefixtures("activations")
def test_a_local_user_does_not_use_up_the_activations_of_the_network_service(machine: Machine, run: Runner) -> None:
    ok("systemctl", "stop", "solo5-networkd")
    task = web(run)
    eventually(lambda: sh("systemctl", "stop", "solo5-networkd").returncode == 0, "no call starts it meanwhile")
    ok("systemctl", "restart", f"solo5-task-{task}.service")
    eventually(lambda: sh("ping", "-c1", "-W1", address(task)).returncode == 0, f"{task} answers a ping")


def test_network_service_has_no_more_power_than_it_needs(machine: Machine, run: Runner) -> None:
    web(run)
    pid = ok("systemctl", "show", "-p", "MainPID", "--value", "solo5-networkd.service").strip()
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    assert effective is not None
    expected = 1 << 12 | 1 << 10 | 1 << 13 | 1 << 21
    words = "CAP_NET_ADMIN, CAP_NET_BIND_SERVICE to hold published ports, CAP_SYS_ADMIN to enter namespaces of groups"
    assert int(effective[1], 16) == expected, f"{words}, CAP_NET_RAW to ask guests for their addresses"
    assert json.loads(ok("systemd-analyze", "security", "--json=short", "solo5-networkd.service"))
