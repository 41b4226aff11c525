import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task import properties
from solo5_systemd.task.properties import (
    PROPERTIES,
    SETTABLE,
    Property,
    TransientUnit,
    directive,
    exec_start,
    parse_property,
    release_of,
)
from solo5_systemd.task.property_types import ANY_ADDRESS, CPUS, INFINITY, SIZE, PropertyType

KNOWN = [
    (Property("Description", "s", "Solo5 unikernel web"), "Description=Solo5 unikernel web"),
    (
        Property("ExecStart", "a(sasb)", [("/x", ["/x", "--a=b", "two words", "$$1", 'q"\\\n'], False)]),
        'ExecStart=/x --a=b "two words" "$$1" "q\\"\\\\\\n"',
    ),
    (Property("CPUQuotaPerSecUSec", "t", 1_500_000), "CPUQuota=150%"),
    (Property("TimeoutStopUSec", "t", 10_000_000), "TimeoutStopSec=10s"),
    (Property("RuntimeMaxUSec", "t", 1_500_000), "RuntimeMaxSec=1500ms"),
    (Property("RuntimeMaxUSec", "t", INFINITY), "RuntimeMaxSec=infinity"),
    (Property("MemoryMax", "t", 128 << 20), "MemoryMax=128M"),
    (Property("MemoryMax", "t", 1025 << 10), f"MemoryMax={1025 << 10}"),  # no multiple of the largest unit
    (Property("MemorySwapMax", "t", 0), "MemorySwapMax=0"),
    (Property("MemoryHigh", "t", INFINITY), "MemoryHigh=infinity"),
    (Property("TasksMax", "t", 16), "TasksMax=16"),
    (Property("TasksMax", "t", INFINITY), "TasksMax=infinity"),
    (Property("NoNewPrivileges", "b", True), "NoNewPrivileges=yes"),
    (Property("PrivateTmpEx", "s", "disconnected"), "PrivateTmp=disconnected"),
    (Property("ProtectControlGroupsEx", "s", "strict"), "ProtectControlGroups=strict"),
    (Property("IgnoreSIGPIPE", "b", False), "IgnoreSIGPIPE=no"),
    (Property("CapabilityBoundingSet", "t", 0), "CapabilityBoundingSet="),
    (Property("RestrictNamespaces", "t", 0x4000000), "RestrictNamespaces=uts"),
    (Property("RestrictAddressFamilies", "(bas)", (True, [])), "RestrictAddressFamilies=none"),
    (Property("UMask", "u", 0o077), "UMask=0077"),
    (Property("Requires", "as", ["a.service", "b.service"]), "Requires=a.service b.service"),
    (
        Property("LogExtraFields", "aay", [b"A=1", b'B=50% "x" \\', b"C="]),
        'LogExtraFields=A=1 "B=50%% \\"x\\" \\\\"',
    ),
    (Property("SystemCallFilter", "(bas)", (False, ["fork", "vfork"])), "SystemCallFilter=~fork vfork"),
    (Property("RestrictAddressFamilies", "(bas)", (True, ["AF_INET"])), "RestrictAddressFamilies=AF_INET"),
    (
        Property("DeviceAllow", "a(ss)", [("/dev/kvm", "rw"), ("/dev/net/tun", "rw")]),
        "DeviceAllow=/dev/kvm rw\nDeviceAllow=/dev/net/tun rw",
    ),
    (Property("TemporaryFileSystem", "a(ss)", [("/", "ro")]), "TemporaryFileSystem=/:ro"),
    (
        Property("BindPaths", "a(ssbt)", [("/a b", "/a", False, 0x4000), ("/b", "/c", True, 0)]),
        'BindPaths="/a b:/a" -/b:/c:norbind',
    ),
    (Property("AllowedCPUs", "ay", b"\x4f"), "AllowedCPUs=0 1 2 3 6"),
    (Property("KillSignal", "i", 15), "KillSignal=SIGTERM"),
    (Property("IPAddressDeny", "a(iayu)", ANY_ADDRESS), "IPAddressDeny=any"),
]


@pytest.mark.parametrize(("entry", "text"), KNOWN)
def test_a_property_is_a_directive_of_a_unit_file(entry: Property, text: str) -> None:
    assert directive(entry) == text


def test_each_property_has_one_row_and_each_that_is_settable_a_directive_of_its_own() -> None:
    rows = list(properties._rows())
    assert sorted(row.name for row in rows) == sorted(PROPERTIES)
    assert sorted(row.directive for row in rows if row.settable) == sorted(SETTABLE)


GOOD = [
    ("MemoryHigh=64M", "MemoryHigh", "t", 64 << 20),
    ("MemoryMin=1GiB", "MemoryMin", "t", 1 << 30),
    ("MemoryMin=64m", "MemoryMin", "t", 64 << 20),
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
    ("IOReadBandwidthMax=/dev/sda 10M", "IOReadBandwidthMax", "a(st)", [("/dev/sda", 10_000_000)]),
    ("IOReadIOPSMax=/dev/sda 5K", "IOReadIOPSMax", "a(st)", [("/dev/sda", 5000)]),
    ("IOWriteIOPSMax=/dev/disk/by-id/a+b@c:0 5", "IOWriteIOPSMax", "a(st)", [("/dev/disk/by-id/a+b@c:0", 5)]),
    ("MemoryDenyWriteExecute=yes", "MemoryDenyWriteExecute", "b", True),
    ("CPUAccounting=TRUE", "CPUAccounting", "b", True),
    ("CPUQuota=150%", "CPUQuotaPerSecUSec", "t", 1_500_000),
    ("CPUQuotaPeriodSec=10ms", "CPUQuotaPeriodUSec", "t", 10_000),
    ("KillSignal=SIGINT", "KillSignal", "i", 2),
    ("KillSignal=15", "KillSignal", "i", 15),
    ("KillSignal=HUP", "KillSignal", "i", 1),
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
    found = parse_property(key, text)
    assert found == Property(name, signature, value)
    key, _, text = directive(found).partition("=")
    assert parse_property(key, text) == found, "as it is shown, it is the same"


BAD = [
    "MemoryHigh=",
    "MemoryHigh=-1",
    "MemoryHigh=1.5G",
    "MemoryHigh=64IB",
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
    "IOReadBandwidthMax=/dev/sda 10MiB",  # as for systemd: a rate is in powers of 1000
    "IOReadBandwidthMax=/dev/sda 20000000T",
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
    "RuntimeMaxSec=1 fortnight",
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
    mask = CPUS.parse(",".join(map(str, cpus)))
    assert isinstance(mask, bytes)
    bits = f"{int.from_bytes(mask, 'little'):b}"
    assert {bit for bit, digit in enumerate(reversed(bits)) if digit == "1"} == cpus


@given(st.integers(0, (1 << 64) - 2))
def test_a_size_in_bytes_is_itself(size: int) -> None:
    assert SIZE.parse(str(size)) == size


def test_a_units_value_is_found_by_name() -> None:
    unit = TransientUnit(name="x.service", properties=(Property("Nice", "i", 1),))
    assert (unit.value("Nice"), unit.value("Slice")) == (1, None)


def test_a_type_without_a_parser_refuses_every_text() -> None:
    with pytest.raises(ValueError, match="not set by operators"):
        PropertyType(signature="s").parse("a")


LINE = ("/x", "$HOME", "${A}", "a$$", "%n")


@pytest.mark.parametrize("release", [0, 252, 253])
def test_before_the_flag_is_written_as_it_is_read_dollars_are_doubled(release: int) -> None:
    doubled = [("/x", ["/x", "$$HOME", "$${A}", "a$$$$", "%n"], False)]
    assert exec_start(LINE, "", release) == Property("ExecStart", "a(sasb)", doubled)


@pytest.mark.parametrize("release", [254, 257, 258])
def test_since_then_the_flag_has_them_left_alone(release: int) -> None:
    found = exec_start(LINE, "/launcher", release)
    assert found == Property("ExecStartEx", "a(sasas)", [("/launcher", list(LINE), ["no-env-expand"])])
    assert directive(found) == 'ExecStart=:@/launcher /x "$HOME" "${A}" "a$$" %n'
    assert exec_start(("/x", "%n"), "", release).name == "ExecStart", "there is none"


@pytest.mark.parametrize(
    "version, release", [("257.7-1~deb13u1", 257), ("252.38-1~deb12u1", 252), ("v258~rc1", 258), ("unknown", 0)]
)
def test_the_release_is_read_of_a_development_version_as_well(version: str, release: int) -> None:
    assert release_of(version) == release
