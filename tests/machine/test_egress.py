"""Egress lists and rate limits of guests that solo5ctl runs, as their operator sees them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.machine.conftest import Machine, Outside, Runner, address, console, eventually, lease, ok, sh
from tests.machine.test_network import web


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


def test_a_guest_receives_no_more_than_its_rate(run: Runner) -> None:
    task = web(run, options=("--rate", "received-packets=10", "--rate", "sent=1M"))
    sh("ping", "-f", "-c", "500", "-w", "2", address(task))
    assert drops(task)["received_rate"] > 50
    assert "Rate: service sent=1M received-packets=10\n" in ok("solo5ctl", "inspect", task)


def test_repairs_are_shown_with_their_time(machine: Machine, run: Runner) -> None:
    machine.expect("was missing")
    task = web(run)
    ok("ip", "link", "delete", str(lease(task)["bridge"]))
    eventually(
        lambda: f"tap {lease(task)['tap']} was missing" in ok("solo5ctl", "network", "repairs"),
        "the repair is recorded",
    )
    ok("systemctl", "restart", "solo5-networkd")
    newest = json.loads(ok("solo5ctl", "network", "repairs", "--json"))[0]
    assert newest["tasks"] == [task]
    assert "was missing" in newest["repair"]
    assert newest["time"][:2] == "20"
    assert details()["repairs"][0] == newest  # type: ignore[index]
