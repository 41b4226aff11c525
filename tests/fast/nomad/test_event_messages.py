"""Texts of task events: short, complete, and without control characters."""

from dataclasses import replace

import pytest
from tests.support.fakes.images import planned
from tests.support.fakes.tasks import LEASE

from solo5_systemd.nomad import event_messages
from solo5_systemd.nomad.event_messages import QUOTED_LINE_MAX
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.outcome import Ending, Outcome


@pytest.mark.parametrize(
    "nics, disks, devices",
    [("", "", "no devices"), ("service", "", "NIC service"), ("service", "storage", "NIC service, disk storage")],
)
def test_a_preflight_names_image_tender_memory_and_devices(nics: str, disks: str, devices: str) -> None:
    message = event_messages.preflight_passed(planned(nics, disks)).message
    assert message == (
        "Preflight passed: web.hvt (555555555555) for hvt 0.12.1, ABI 2; "
        f"{22 if nics else 24} of 32 MiB for the guest; {devices}"
    )


def test_all_addresses_are_one_event_and_so_is_none() -> None:
    event = event_messages.leases_attached([LEASE, LEASE])
    assert event.message == "; ".join(["NIC service has 10.89.0.2 in network default"] * 2)
    assert event.annotations["nic.service.address"] == "10.89.0.2/24"
    event = event_messages.leases_attached([replace(LEASE, ipv4=None, gateway4=None)])
    assert event.message == "NIC service has no leased address in network default"
    assert "nic.service.address" not in event.annotations


def test_a_full_disk_is_named_and_so_is_one_that_has_space_again() -> None:
    disk = FailedDisk(task="web", disk="data", path="/srv/data.img", free=0)
    full, again = (event_messages.full_disk(disk, is_full=is_full) for is_full in (True, False))
    assert full.message.startswith("No space is left in the file system of disk data (/srv/data.img): the guest gets")
    assert again.message == "Space is left again in the file system of disk data (/srv/data.img)"
    assert (full.annotations, again.annotations) == ({"full_disks": "data"}, {})


def test_an_end_quotes_the_last_lines_and_no_more() -> None:
    lines = [str(number) for number in range(20)]
    event = event_messages.exit_event(Outcome(ending=Ending.ABORTED, sentence="the guest aborted", last_lines=lines))
    assert event.message == "The guest aborted. Last console lines: “15”, “16”, “17”, “18”, “19”"


@pytest.mark.parametrize(
    "line, shown",
    [
        ("  plain \r\n", "plain"),
        ("\x1b[31mred\x07\0", "\\x1b[31mred\\x07\\x00"),
        ("\u202egnp", "\\u202egnp"),
        ("é ☺ 漢", "é ☺ 漢"),
        ("a|b", "a¦b"),
        ("x" * 500, "x" * (QUOTED_LINE_MAX - 1) + "…"),
    ],
)
def test_a_quoted_line_is_bounded_and_steers_no_terminal(line: str, shown: str) -> None:
    assert event_messages.printable(line) == shown
