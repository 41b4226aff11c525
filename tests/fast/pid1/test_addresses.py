from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.model import NicRequest, Reservation
from solo5_systemd.pid1 import prepare
from solo5_systemd.pid1.prepare import Addresses

WEB = TaskName("web")
WANTED = (NicRequest(nic=LEASE.nic, network=LEASE.network),)


def test_addresses_are_kept_for_the_next_start(tmp_path: Path) -> None:
    subject = Addresses(WEB, tmp_path / "new")
    assert subject.of(WANTED) == WANTED
    subject.keep(Reservation(task=WEB, leases=(LEASE,)).request)
    [nic] = Addresses(WEB, tmp_path / "new").of(WANTED)
    assert (nic.ipv4, nic.mac, nic.ipv6) == (LEASE.address, LEASE.mac, LEASE.address6)


def test_a_request_has_precedence_and_another_network_other_addresses(tmp_path: Path) -> None:
    subject = Addresses(WEB, tmp_path)
    subject.keep(Reservation(task=WEB, leases=(LEASE,)).request)
    [nic] = subject.of([NicRequest(nic=LEASE.nic, network=LEASE.network, ipv4=IPv4Address("10.1.2.3"))])
    assert nic.ipv4 == IPv4Address("10.1.2.3")
    other = NicRequest(nic=LEASE.nic, network=NetworkName("other"))
    assert subject.of([other]) == (other,)


def test_addresses_are_written_only_if_they_are_others(tmp_path: Path) -> None:
    request = Reservation(task=WEB, leases=(LEASE,)).request
    Addresses(WEB, tmp_path).keep(request)
    file = tmp_path / "web.json"
    before = file.stat().st_ino
    Addresses(WEB, tmp_path).keep(request)
    assert file.stat().st_ino == before
    subject = Addresses(WEB, tmp_path)
    subject.keep(Reservation(task=WEB, leases=(replace(LEASE, ipv4=IPv4Interface("10.153.0.9/24")),)).request)
    [nic] = Addresses(WEB, tmp_path).of(WANTED)
    assert nic.ipv4 == IPv4Address("10.153.0.9")


def test_a_damaged_file_is_none_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, str]] = []
    monkeypatch.setattr(prepare, "log_about", lambda unit, text, *, priority: reported.append((unit, text)))
    (tmp_path / "web.json").write_text('[["service", 1]]')
    assert Addresses(WEB, tmp_path).of(WANTED) == WANTED
    [(unit, text)] = reported
    assert unit == "web.service"
    assert text.startswith("the addresses that the task had last are not known: ")
