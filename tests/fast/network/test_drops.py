"""Counts of dropped packets, by guest and by rule, of what taps have passed, and the record of repairs."""

import json
import re
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network import lease_files, nft_rules, tap_counters
from solo5_systemd.network.drops import DESCRIPTIONS, OF_GUESTS, OF_TAPS, RULES, Dropped
from solo5_systemd.network.lease_files import REPAIRED_TASKS_MAX, REPAIRS, REPAIRS_MAX, LeaseStore, read_repairs
from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.overview import Repair
from solo5_systemd.network.tap_counters import Counters, Traffic, parse_net_dev, read_tap_owner, read_traffic, tap_alias
from solo5_systemd.settings.records import document, record

FIRST, SECOND = IPv4Address("10.77.0.2"), IPv4Address("10.78.0.2")
DROPPED = Dropped(
    rules={
        ("connections", str(FIRST)): 3,
        ("fragments", str(FIRST)): 4,
        ("fragments", str(SECOND)): 1,
        ("egress", str(FIRST)): 5,
        ("sent_rate", "s5-a"): 6,
        ("sent_rate", "s5-b"): 1,
        ("received_rate", "s5-a"): 7,
        ("spoofed", "s5-a"): 8,
        ("spoofed", "s5-b"): 1,
        ("host", "solo5-front"): 9,
    }
)


def test_counts_are_of_a_guest_and_of_a_network() -> None:
    front = DROPPED.within([IPv4Network("10.77.0.0/24")], {"s5-a", "solo5-front"})
    assert front.of_guest([FIRST], "s5-a") == {
        "connections": 3, "fragments": 4, "egress": 5, "sent_rate": 6, "received_rate": 7,
        "spoofed": 8, "unsafe": 0, "broadcasts": 0,
    }  # fmt: skip
    assert DROPPED.of_guest([], "s5-b")["spoofed"] == 1
    assert DROPPED.by_guest("fragments") == {FIRST: 4, SECOND: 1}
    assert {rule: count for rule, count in front.by_rule().items() if count} == {
        "connections": 3, "fragments": 4, "egress": 5, "sent_rate": 6, "received_rate": 7, "spoofed": 8, "host": 9,
    }  # fmt: skip
    later = Dropped(rules={("later", "s5-a"): 1})  # of a service of a later version
    assert list(DROPPED.by_rule()) == list(later.by_rule()) == list(DESCRIPTIONS)
    assert DROPPED.within([None]) == Dropped()


def test_counts_are_read_as_they_were_written() -> None:
    written = json.loads(json.dumps(document(DROPPED)))
    assert written["rules"].items() >= {"connections 10.77.0.2": 3, "spoofed s5-a": 8, "host solo5-front": 9}.items()
    assert record(Dropped, Fields(written)) == DROPPED
    with pytest.raises(InvalidRequestError, match="dropped.rules.spoofed s5-a is 'many': expected a whole number"):
        record(Dropped, Fields({"rules": {"spoofed s5-a": "many"}}, "dropped"))


def test_every_rule_is_in_the_tables_and_in_the_documentation() -> None:
    text = "".join(nft_rules.tables(Ruleset(), owned=False).values())
    assert {f"dropped_{rule}" for rule in RULES} == set(re.findall(r"goto (dropped_\w+)", text))
    for rule in RULES:
        assert f"set dropped_{rule} {{ type ifname;" in text
    assert {f"dropped_{rule}" for rule in RULES} < nft_rules.DYNAMIC
    page = Path("docs/network-limits.md").read_text()
    table = page.partition("| rule | drops |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)) == DESCRIPTIONS
    metrics = Path("docs/metrics.md").read_text()
    for rules in ((*OF_GUESTS, *OF_TAPS), [rule for rule in RULES if rule not in OF_TAPS]):
        assert f"`rule`: {', '.join(f'`{rule}`' for rule in rules)} |" in metrics


def test_the_last_repairs_are_kept_newest_first(state: Path) -> None:
    assert read_repairs() == ()
    tasks = [TaskName(f"t{number}") for number in range(REPAIRED_TASKS_MAX + 2)]
    for number in range(REPAIRS_MAX + 1):
        LeaseStore().record_repair(Repair(tasks=tuple(tasks), what=f"repair {number}"))
    recorded = read_repairs()
    assert [each.what for each in recorded] == [f"repair {number}" for number in range(REPAIRS_MAX, 0, -1)]
    assert (recorded[0].tasks, recorded[0].others) == (tuple(tasks[:REPAIRED_TASKS_MAX]), 2)
    assert recorded[0].time >= recorded[-1].time > 1_600_000_000_000_000


@pytest.mark.parametrize("content", ["", "{", "[]", '{"repairs": [{"time": "now"}]}', '{"repairs": [{"time": 1}]}'])
def test_a_damaged_record_of_repairs_is_none(state: Path, content: str) -> None:
    (state / REPAIRS).write_text(content)
    assert read_repairs() == ()
    LeaseStore().record_repair(Repair(tasks=(), what="later"))
    assert [each.what for each in read_repairs()] == ["later"]


def test_a_record_that_cannot_be_written_is_no_error(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_files, "STATE", state / "missing")
    LeaseStore().record_repair(Repair(tasks=(), what="lost"))
    assert read_repairs() == ()


# -- tap counters in the guest's directions, and the task of each tap ------------------------------------------------


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
