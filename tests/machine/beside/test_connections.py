"""One connection to a guest, and datagrams beside it, while the daemons of other programs start, reload and restart."""

import pytest
from tests.machine.beside.conftest import Program, doctor, remedy
from tests.machine.beside.test_bridges import LIBVIRT
from tests.machine.beside.test_filters import DOCKER, FIREWALLD, UFW
from tests.machine.beside.test_managers import NETWORK_MANAGER, NETWORKD
from tests.machine.conftest import Machine, Outside, Runner, ok
from tests.machine.test_network import GATEWAY, IPV4
from tests.machine.traffic import traffic

NFTABLES = Program(
    "nftables.service",
    first=["systemctl start nftables"],
    again=["systemctl reload nftables", "systemctl restart nftables"],
    last=["systemctl stop nftables"],
)
PROGRAMS = [DOCKER, FIREWALLD, UFW, LIBVIRT, NETWORK_MANAGER, NETWORKD, NFTABLES]
PORT = 7007


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_connection_is_held_through_all_that_a_daemon_does(
    machine: Machine, outside: Outside, run: Runner, program: Program
) -> None:
    """It pauses where the start closes the way, until the command that doctor has is executed."""
    run("net.hvt", IPV4, GATEWAY, options=("-p", f"{PORT}:7", "-p", f"{PORT}:7/udp"))
    with program.ending(), traffic(outside, outside.here, PORT, patience=1) as flow:
        flow.goes_on()
        program.do(program.first)
        if doctor()["verdict"] != "ok":
            ok("sh", "-ec", remedy())
        flow.goes_on()
        for command in program.again:
            program.do([command])
            flow.goes_on()
        print(f"{program.name}: {flow.tally()}")
        before = flow.tally().lost
        assert flow.tally().lost == before, "datagrams come back again, too"
