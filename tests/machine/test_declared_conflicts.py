"""Declarations that are in order each, and not together."""

from tests.machine.conftest import inspect, ok, sh, unit_property
from tests.machine.declared import ETC, Declarations, status


def test_two_files_with_one_static_address_name_the_other_task(declare: Declarations) -> None:
    one = declare("one", "Argument={mirage}")
    ok("systemctl", "start", one)
    [nic] = inspect("one")["nics"]
    address = nic["ipv4"].partition("/")[0]
    two = declare("two", f"Network=service=default,ip={address}\nArgument={{mirage}}")
    assert sh("systemctl", "start", two).returncode == 1
    assert f"address {address} for NIC service is taken by task one: expected a free one." in status(two)
    assert unit_property(one, "ActiveState") == "active"
    ok("systemctl", "stop", one)
    ok("systemctl", "start", two)
    assert inspect("two")["nics"][0]["ipv4"] == nic["ipv4"]
    ok("systemctl", "start", one)  # with another address than it had: that one is taken
    other = inspect("one")["nics"][0]["ipv4"]
    assert other != nic["ipv4"]
    journal = ok("journalctl", "--boot", "--quiet", "--output=cat", "--unit", one)
    assert f"the task has another address than before, {other.partition('/')[0]}: address {address} for NIC" in journal


def test_doctor_names_both_files_before_the_second_start(declare: Declarations) -> None:
    declare("one", "Publish=8701:80\nArgument={mirage}")
    declare("two", "Publish=8701:80\nArgument={mirage}")
    found = ok("solo5ctl", "doctor")
    assert (
        f"Published port 0.0.0.0:8701/tcp is in {ETC}/one.unikernel and in {ETC}/two.unikernel: only one of both tasks "
        "can run at a time."
    ).lower() in found.lower()


def test_a_cycle_is_refused_by_systemd(declare: Declarations) -> None:
    declare("two", "", image="sleeper.spt", rest="[Unit]\nAfter=one.service\n")
    one = declare("one", "", image="sleeper.spt", rest="[Unit]\nRequires=two.service\nAfter=two.service\n")
    refused = sh("systemctl", "start", one)
    assert refused.returncode == 1
    assert "Transaction order is cyclic" in refused.stderr
    assert [unit_property(f"{name}.service", "ActiveState") for name in ("one", "two")] == ["inactive", "inactive"]
    assert "Found ordering cycle" in ok("journalctl", "--boot", "--quiet", "--no-pager", "--identifier=systemd")
