"""Declarations that are in order each, and not together."""

import pytest
from tests.machine.conftest import Files, Runner, address, eventually, ok, sh, unit_property
from tests.machine.declared import Declarations, journal, status


def test_two_files_with_one_static_address_name_the_other_task(declare: Declarations) -> None:
    one = declare("one", "Argument={mirage}")
    ok("systemctl", "start", one)
    had = address("one")
    two = declare("two", f"Network=service=default,ip={had}\nArgument={{mirage}}")
    assert sh("systemctl", "start", two).returncode == 1
    assert f"address {had} for NIC service is taken by task one: expected a free one." in status(two)
    assert unit_property(one, "ActiveState") == "active"
    ok("systemctl", "stop", one)
    ok("systemctl", "start", two)
    assert address("two") == had
    ok("systemctl", "start", one)  # with another address than it had: that one is taken
    other = address("one")
    assert other != had
    assert f"the task has another address than before, {other}: address {had} for NIC" in journal(one)


GUESTS = 5
"""Of a /29: neither its own address, nor that for broadcasts, nor the gateway's."""


@pytest.fixture
def small(place: Files) -> None:
    place("/etc/solo5/machine-test.toml", "[network.small]\nipv4 = '10.66.0.0/29'\n")


def test_no_other_task_has_the_address_of_a_stopped_one_while_there_are_others(
    small: None, declare: Declarations, run: Runner
) -> None:
    web = declare("web", "Network=service=small\nArgument={mirage}")

    def stop() -> None:
        ok("systemctl", "stop", web)
        over = "its network is released"
        eventually(lambda: unit_property("solo5-prepare@web.service", "ActiveState") == "inactive", over)

    ok("systemctl", "start", web)
    had = address("web")
    stop()
    on_small = ("--net", "service=small")
    others = [run("net.spt", name=f"other{number}", options=on_small) for number in range(GUESTS - 1)]
    assert had not in [address(other) for other in others]
    ok("systemctl", "start", web)
    assert address("web") == had
    # It is given to another task rather than to none.
    stop()
    assert address(run("net.spt", name="last", options=on_small)) == had
    assert f"task last has the address {had} of network small, which declared task web had last" in journal(
        "solo5-networkd.service"
    )
    assert sh("systemctl", "start", web).returncode == 1
    assert "network small has no free address for NIC service: all of 10.66.0.0/29 are taken" in status(web)
    assert unit_property(web, "ActiveState") == "inactive"
    # Its own again as soon as it is free.
    ok("solo5ctl", "rm", "--force", "last")
    ok("systemctl", "start", web)
    assert address("web") == had
    # Another one, which is shown, and remembered from then on.
    stop()
    run("net.spt", name="last", options=on_small)
    freed = address(others[0])
    ok("solo5ctl", "rm", "--force", others[0])
    ok("systemctl", "start", web)
    assert address("web") == freed
    assert (
        f"the task has another address than before, {freed}: address {had} for NIC service is taken by task last"
        in journal(web)
    )
    ok("solo5ctl", "rm", "--force", "last")
    ok("systemctl", "restart", web)
    assert address("web") == freed
