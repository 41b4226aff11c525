"""Port sockets: a port stays bound over a kill or restart of the service, and is free after its task."""

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import Machine, Outside, Runner, eventually, ok, sh, unit_property
from tests.machine.test_network import web

NETWORKD = "solo5-networkd.service"


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


def killed() -> None:
    pid = unit_property(NETWORKD, "MainPID")
    ok("kill", "-KILL", pid)
    eventually(lambda: unit_property(NETWORKD, "MainPID") not in ("0", pid), "it is started again")


def test_a_published_port_is_held_over_a_kill_a_restart_and_another_pid_1(
    machine: Machine, run: Runner, outside: Outside
) -> None:
    machine.expect("killed|Failed with result")
    task = web(run, options=("-p", "8500:80", "-p", "127.0.0.1:8501:7/udp"))
    assert unit_property(NETWORKD, "NFileDescriptorStore") == "1", "both ports together"
    with wanted(8500) as tried:
        killed()
        ok("systemctl", "restart", NETWORKD)
        ok("systemctl", "daemon-reexec")
        killed()
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


def test_what_the_network_is_made_of_is_roots_alone(run: Runner) -> None:
    task = web(run)
    nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    assert sh(*nobody, "ls", "/run/solo5/network").returncode != 0
    shown = sh(*nobody, "solo5ctl", "inspect", "--json", task)
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)
    assert "10.153." not in shown.stdout
    examined = sh(*nobody, "solo5ctl", "doctor")
    assert "Traceback" not in examined.stderr
    assert "tap s5-" not in examined.stdout, "what cannot be read is no proof that a tap is nobody's"
