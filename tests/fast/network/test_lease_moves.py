"""Records of ports that were moved: what a service finds that was killed between two files."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.network.test_network_model import RECORD

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.networkd.leases import Leases

PORTS = RECORD.reservation.ports
OLD = replace(RECORD, reservation=replace(RECORD.reservation, task=TaskName("old")))
NEW = replace(RECORD, reservation=replace(RECORD.reservation, task=TaskName("new"), ports=()))


@pytest.fixture
def leases(state: Path) -> Leases:
    made = Leases(LeaseStore())
    made.save(OLD)
    made.save(NEW)
    return made


def test_a_port_of_two_records_belongs_to_the_later_move(leases: Leases) -> None:
    assert PORTS
    without, having = leases.move_ports(OLD, NEW)
    assert (without.reservation.ports, having.reservation.ports, having.lender) == ((), PORTS, "old")
    leases.save(OLD)  # as if its second file had not been written
    leases.resolve_moves()
    held = {each.reservation.task: each.reservation.ports for each in leases.records}
    assert held == {"old": (), "new": PORTS}
    with_ports, back = leases.get(TaskName("new")), leases.get(TaskName("old"))
    assert with_ports
    assert back
    returned, again = leases.move_ports(with_ports, back)
    assert (returned.lender, again.lender, again.reservation.ports) == ("", "", PORTS)
    leases.save(with_ports)
    leases.resolve_moves()
    assert {each.reservation.task: each.reservation.ports for each in leases.records} == {"old": PORTS, "new": ()}
