from ipaddress import IPv4Address
from pathlib import Path

from tests.support.fakes.tasks import LEASE

from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network.model import NicRequest, Reservation
from solo5_systemd.pid1.prepare import Addresses

WEB = TaskName("web")
WANTED = (NicRequest(nic=LEASE.nic, network=LEASE.network),)


def test_addresses_are_kept_for_the_next_start(tmp_path: Path) -> None:
    subject = Addresses(WEB, tmp_path / "new")
    assert subject.of(WANTED) == WANTED
    subject.keep(Reservation(task=WEB, leases=(LEASE,)))
    [nic] = Addresses(WEB, tmp_path / "new").of(WANTED)
    assert (nic.ipv4, nic.mac, nic.ipv6) == (LEASE.address, LEASE.mac, LEASE.address6)


def test_a_request_has_precedence_and_another_network_other_addresses(tmp_path: Path) -> None:
    subject = Addresses(WEB, tmp_path)
    subject.keep(Reservation(task=WEB, leases=(LEASE,)))
    [nic] = subject.of([NicRequest(nic=LEASE.nic, network=LEASE.network, ipv4=IPv4Address("10.1.2.3"))])
    assert nic.ipv4 == IPv4Address("10.1.2.3")
    other = NicRequest(nic=LEASE.nic, network=NetworkName("other"))
    assert subject.of([other]) == (other,)


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "web.json").write_text('[["service", 1]]')
    assert Addresses(WEB, tmp_path).of(WANTED) == WANTED
