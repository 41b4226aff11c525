"""Tap counters in the guest's directions, and the task of each tap."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network import tap_counters
from solo5_systemd.network.tap_counters import Counters, Traffic, parse_net_dev, read_tap_owner, read_traffic, tap_alias

TABLE = """\
Inter-|   Receive                                               |  Transmit
 face |bytes   packets errs drop fifo frame compressed multicast|bytes   packets errs drop fifo colls carrier compressed
    lo:    900       9    0    0    0     0          0         0     900       9    0    0    0     0       0          0
s5-aaaaaaaaaaaa: 18446744073709551615 2 3 4 5 6 7 8 10 20 30 40 50 60 70 80
s5-bbbbbbbbbbbb:     1      1    0    0    0     0          0         0       1      1   0    0   0    0      0        0
s5-damaged: 1 2 3
"""
WEB = Traffic(
    received=Counters(bytes=10, packets=20, errors=30, drops=40),
    sent=Counters(bytes=2**64 - 1, packets=2, errors=3, drops=4),
)


@given(st.text(alphabet="a0:² \n", max_size=200))
def test_any_text_gives_counters_or_nothing(text: str) -> None:
    assert all(isinstance(counted.sent.bytes, int) for _, counted in parse_net_dev(f"\n\n{text}"))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, alias in (("lo", ""), ("s5-aaaaaaaaaaaa", tap_alias(TaskName("web"), DeviceName("service")))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ifalias").write_text(f"{alias}\n")
    monkeypatch.setattr(tap_counters, "LINKS", tmp_path)
    return tmp_path


def test_a_tap_belongs_to_the_task_in_its_alias(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was deleted since the read of the table has no task."""
    table = links / "dev"
    table.write_text(TABLE)
    monkeypatch.setattr(tap_counters, "_COUNTERS", table)
    assert read_traffic() == {"web": {"service": WEB}}


@pytest.mark.parametrize("mark", ["", "solo5 task web", "solo5 task web NIC service more", "uplink"])
def test_another_alias_has_no_task(links: Path, mark: str) -> None:
    (links / "lo/ifalias").write_text(f"{mark}\n")
    assert read_tap_owner(links / "lo") is None
