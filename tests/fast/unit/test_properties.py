import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.unit.properties import Property, TransientUnit, parse_property
from solo5_systemd.unit.property_table import SETTABLE
from solo5_systemd.unit.property_types import APPARMOR_PROFILE, INFINITY, PropertyType, parse_cpus, parse_size

GOOD = [
    ("MemoryHigh=64M", "MemoryHigh", "t", 64 << 20),
    ("MemoryMin=1GiB", "MemoryMin", "t", 1 << 30),
    ("MemorySwapMax=infinity", "MemorySwapMax", "t", INFINITY),
    ("MemoryLow= 0 ", "MemoryLow", "t", 0),
    ("LimitCORE=0", "LimitCORE", "t", 0),
    ("LimitNOFILE=1024", "LimitNOFILE", "t", 1024),
    ("TasksMax=infinity", "TasksMax", "t", INFINITY),
    ("AppArmorProfile=solo5-tender", "AppArmorProfile", "(bs)", (False, "solo5-tender")),
    ("AppArmorProfile=-/usr/bin/solo5-hvt", "AppArmorProfile", "(bs)", (True, "/usr/bin/solo5-hvt")),
    ("SELinuxContext=system_u:system_r:solo5_t:s0", "SELinuxContext", "s", "system_u:system_r:solo5_t:s0"),
    ("CPUWeight=1", "CPUWeight", "t", 1),
    ("IOWeight=10000", "IOWeight", "t", 10000),
    ("AllowedCPUs=0-3,6", "AllowedCPUs", "ay", bytes([0b1001111])),
    ("AllowedMemoryNodes=8 0", "AllowedMemoryNodes", "ay", bytes([1, 1])),
    ("IOReadBandwidthMax=/dev/sda 10M", "IOReadBandwidthMax", "a(st)", [("/dev/sda", 10 << 20)]),
    ("IOWriteIOPSMax=/dev/disk/by-id/a+b@c:0 5", "IOWriteIOPSMax", "a(st)", [("/dev/disk/by-id/a+b@c:0", 5)]),
    ("MemoryDenyWriteExecute=yes", "MemoryDenyWriteExecute", "b", True),
    ("CPUAccounting=TRUE", "CPUAccounting", "b", True),
    ("CPUQuota=150%", "CPUQuotaPerSecUSec", "t", 1_500_000),
    ("CPUQuotaPeriodSec=10ms", "CPUQuotaPeriodUSec", "t", 10_000),
    ("KillSignal=SIGINT", "KillSignal", "i", 2),
    ("KillSignal=15", "KillSignal", "i", 15),
    ("LogRateLimitBurst=0", "LogRateLimitBurst", "u", 0),
    ("LogRateLimitIntervalSec=1min", "LogRateLimitIntervalUSec", "t", 60_000_000),
    ("Nice=-20", "Nice", "i", -20),
    ("OOMScoreAdjust=1000", "OOMScoreAdjust", "i", 1000),
    ("RuntimeMaxSec=2 h", "RuntimeMaxUSec", "t", 7_200_000_000),
    ("Slice=solo5-batch.slice", "Slice", "s", "solo5-batch.slice"),
    ("Slice=solo5.slice", "Slice", "s", "solo5.slice"),
    ("SystemCallFilter=~fork @mount", "SystemCallFilter", "(bas)", (False, ["fork", "@mount"])),
    ("TimeoutStopSec=infinity", "TimeoutStopUSec", "t", INFINITY),
    ("TimeoutStopSec=90", "TimeoutStopUSec", "t", 90_000_000),
]


@pytest.mark.parametrize("assignment, name, signature, value", GOOD)
def test_a_property_is_typed_as_an_operator_writes_it(
    assignment: str, name: str, signature: str, value: object
) -> None:
    key, _, text = assignment.partition("=")
    assert parse_property(key, text) == Property(name, signature, value)


BAD = [
    "MemoryHigh=",
    "MemoryHigh=-1",
    "MemoryHigh=1.5G",
    "MemoryHigh=64m",
    "MemoryHigh=99999999999T",
    "MemoryHigh=18446744073709551615",
    "MemoryHigh=" + "9" * 500,
    "MemoryHigh=٣",
    "LimitNOFILE=1K",
    "LimitNOFILE=",
    "TasksMax=18446744073709551615",
    "AppArmorProfile=",
    "AppArmorProfile=-",
    "AppArmorProfile=unconfined",
    "AppArmorProfile=-unconfined",
    "AppArmorProfile=a b",
    "AppArmorProfile=" + "a" * 256,
    "AppArmorProfile=a%n",
    "AppArmorProfile=a\\",
    "SELinuxContext=a%n",
    "SELinuxContext=",
    "SELinuxContext=-system_u:system_r:solo5_t:s0",
    "SELinuxContext=a\nUser=root",
    "CPUWeight=0",
    "CPUWeight=10001",
    "CPUWeight=1.0",
    "AllowedCPUs=",
    "AllowedCPUs=3-1",
    "AllowedCPUs=0-",
    "AllowedCPUs=99999",
    "AllowedCPUs=a",
    "IOReadBandwidthMax=10M",
    "IOReadBandwidthMax=/dev/sda",
    "IOReadBandwidthMax=dev 10M",
    "IOReadBandwidthMax=/dev/sda\nExecStopPost=+/x 10M",
    "IOReadBandwidthMax=/dev/sda\r[Service] 10M",
    "IOReadBandwidthMax=/dev/disk/by label 10M",
    "IOReadBandwidthMax=/dev/a=b 10M",
    "IOReadBandwidthMax=/dev/a%n 10M",
    "IOReadBandwidthMax=/dev//sda 10M",
    "IOReadBandwidthMax=/dev/../sda 10M",
    "IOReadBandwidthMax=/dev/sda 0",
    "MemoryDenyWriteExecute=no",
    "MemoryDenyWriteExecute=maybe",
    "CPUQuota=0%",
    "CPUQuota=50",
    "CPUQuota=-5%",
    "KillSignal=SIGKILL",
    "KillSignal=9",
    "Nice=20",
    "Nice=",
    "OOMScoreAdjust=-1001",
    "RuntimeMaxSec=1 day",
    "RuntimeMaxSec=500us",
    "RuntimeMaxSec=99999999999999999999h",
    "Slice=system.slice",
    "Slice=solo5x.slice",
    "Slice=solo5-a/b.slice",
    "SystemCallFilter=fork",
    "SystemCallFilter=~",
    "SystemCallFilter=~ ",
    "SystemCallFilter=~fork;",
]


@pytest.mark.parametrize("assignment", BAD, ids=lambda text: text[:40])
def test_a_malformed_value_is_refused_with_what_was_expected(assignment: str) -> None:
    key, _, text = assignment.partition("=")
    with pytest.raises(InvalidRequestError) as caught:
        parse_property(key, text)
    assert str(caught.value).startswith(f"unit property {assignment[:30].splitlines()[0]}")
    assert ": expected " in str(caught.value)
    assert "invalid literal" not in str(caught.value)


@pytest.mark.parametrize("key", ["ExecStart", "User", "MemoryMax", "DeviceAllow", "", "memoryhigh"])
def test_what_would_undo_the_engines_own_decisions_cannot_be_set(key: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unit property '{key}' cannot be set: expected one of Allowed"):
        parse_property(key, "1")


def test_every_property_that_can_be_set_is_tried_above_or_is_one_of_a_family_that_is() -> None:
    families = ("Memory", "Limit", "IO")
    tried = {assignment.partition("=")[0] for assignment, *_ in GOOD}
    assert not [key for key in SETTABLE if key not in tried and not key.startswith(families)]


@given(st.sets(st.integers(0, 9999), min_size=1))
def test_a_processor_list_is_the_mask_of_its_members(cpus: set[int]) -> None:
    mask = int.from_bytes(parse_cpus(",".join(map(str, cpus))), "little")
    assert {bit for bit in range(10000) if mask >> bit & 1} == cpus


@given(st.integers(0, (1 << 64) - 2))
def test_a_size_in_bytes_is_itself(size: int) -> None:
    assert parse_size(str(size)) == size


def test_a_units_value_is_found_by_name() -> None:
    unit = TransientUnit(name="x.service", properties=(Property("Nice", "i", 1),))
    assert (unit.value("Nice"), unit.value("Slice")) == (1, None)


@pytest.mark.parametrize("text", ["solo5-tender", "-solo5-tender"])
def test_a_profile_is_shown_as_an_operator_writes_it(text: str) -> None:
    assert APPARMOR_PROFILE.format(APPARMOR_PROFILE.parse(text)) == text


def test_a_type_without_a_parser_refuses_every_text() -> None:
    with pytest.raises(ValueError, match="not set by operators"):
        PropertyType(signature="s").parse("a")
