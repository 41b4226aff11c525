"""Each unit property is described once, and its text is that of a unit file."""

import pytest

from solo5_systemd.unit import property_table
from solo5_systemd.unit.properties import Property, directive, parse_property
from solo5_systemd.unit.property_table import PROPERTIES, SETTABLE
from solo5_systemd.unit.property_types import INFINITY

KNOWN = [
    (Property("Description", "s", "Solo5 unikernel web"), "Description=Solo5 unikernel web"),
    (
        Property("ExecStart", "a(sasb)", [("/x", ["/x", "--a=b", "two words", "$$1", 'q"\\\n'], False)]),
        'ExecStart=/x --a=b "two words" "$$1" "q\\"\\\\\\n"',
    ),
    (Property("CPUQuotaPerSecUSec", "t", 1_500_000), "CPUQuota=150%"),
    (Property("TimeoutStopUSec", "t", 10_000_000), "TimeoutStopSec=10s"),
    (Property("RuntimeMaxUSec", "t", 1_500_000), "RuntimeMaxSec=1500ms"),
    (Property("CPUQuotaPeriodUSec", "t", 1), "CPUQuotaPeriodSec=1us"),
    (Property("RuntimeMaxUSec", "t", INFINITY), "RuntimeMaxSec=infinity"),
    (Property("MemoryMax", "t", 128 << 20), "MemoryMax=128M"),
    (Property("MemoryMax", "t", (128 << 20) + 1), f"MemoryMax={(128 << 20) + 1}"),
    (Property("MemorySwapMax", "t", 0), "MemorySwapMax=0"),
    (Property("MemoryHigh", "t", INFINITY), "MemoryHigh=infinity"),
    (Property("TasksMax", "t", 16), "TasksMax=16"),
    (Property("TasksMax", "t", INFINITY), "TasksMax=infinity"),
    (Property("NoNewPrivileges", "b", True), "NoNewPrivileges=yes"),
    (Property("PrivateTmpEx", "s", "disconnected"), "PrivateTmp=disconnected"),
    (Property("ProtectControlGroupsEx", "s", "strict"), "ProtectControlGroups=strict"),
    (Property("IgnoreSIGPIPE", "b", False), "IgnoreSIGPIPE=no"),
    (Property("CapabilityBoundingSet", "t", 0), "CapabilityBoundingSet="),
    (Property("RestrictNamespaces", "t", 0), "RestrictNamespaces=yes"),
    (Property("UMask", "u", 0o077), "UMask=0077"),
    (Property("Requires", "as", ["a.service", "b.service"]), "Requires=a.service b.service"),
    (Property("LogExtraFields", "aay", [b"A=1", b"B=two words"]), 'LogExtraFields=A=1 "B=two words"'),
    (Property("SystemCallFilter", "(bas)", (False, ["fork", "vfork"])), "SystemCallFilter=~fork vfork"),
    (Property("RestrictAddressFamilies", "(bas)", (True, ["AF_INET"])), "RestrictAddressFamilies=AF_INET"),
    (Property("DeviceAllow", "a(ss)", [("/dev/kvm", "rw")]), "DeviceAllow=/dev/kvm rw"),
    (Property("TemporaryFileSystem", "a(ss)", [("/", "ro")]), "TemporaryFileSystem=/:ro"),
    (Property("BindPaths", "a(ssbt)", [("/a", "/a", False, 0), ("/b", "/c", True, 0)]), "BindPaths=/a -/b:/c"),
    (Property("AllowedCPUs", "ay", b"\x4f"), "AllowedCPUs=0 1 2 3 6"),
    (Property("KillSignal", "i", 15), "KillSignal=SIGTERM"),
    (Property("IPAddressDeny", "a(iayu)", [(2, bytes(4), 0), (10, bytes(16), 0)]), "IPAddressDeny=any"),
    (Property("IPAddressAllow", "a(iayu)", [(2, b"\x0a\x00\x00\x00", 8)]), "IPAddressAllow=10.0.0.0/8"),
    (Property("Unheard", "a{sv}", {"x": 1}), "Unheard={'x': 1}"),
]

OPERATORS = [
    "AllowedCPUs=0 3", "CPUQuota=150%", "CPUWeight=50", "IOReadBandwidthMax=/dev/sda 1048576",
    "KillSignal=SIGINT", "Nice=-5",
    "LimitNOFILE=64", "MemoryHigh=64M", "MemoryDenyWriteExecute=yes", "OOMScoreAdjust=500", "RuntimeMaxSec=5s",
    "Slice=solo5-batch.slice", "SystemCallFilter=~fork", "TasksMax=32", "TimeoutStopSec=1500ms", "LimitCORE=infinity",
]  # fmt: skip


@pytest.mark.parametrize(("entry", "text"), KNOWN)
def test_a_property_is_a_directive_of_a_unit_file(entry: Property, text: str) -> None:
    assert directive(entry) == text


@pytest.mark.parametrize("text", OPERATORS)
def test_a_property_is_shown_as_it_was_typed(text: str) -> None:
    key, _, value = text.partition("=")
    assert key in SETTABLE
    assert directive(parse_property(key, value)) == text


def test_a_size_that_is_no_multiple_of_its_largest_unit_is_shown_in_bytes() -> None:
    assert directive(Property("MemoryMax", "t", 1025 << 10)) == f"MemoryMax={1025 << 10}"


def test_each_property_has_one_row_and_each_that_is_settable_a_directive_of_its_own() -> None:
    rows = list(property_table._rows())
    assert sorted(row.name for row in rows) == sorted(PROPERTIES)
    assert sorted(row.directive for row in rows if row.settable) == sorted(SETTABLE)
