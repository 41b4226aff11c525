from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from tests.support.fakes.images import SHA256, disk, stored
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, Target, TaskName, UnitKind
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.resolver import Resolver, hosts, ntp_servers
from solo5_systemd.storage.archive import archive_disk
from solo5_systemd.storage.model import ArchiveRequest, Backing, DiskRequest
from solo5_systemd.task.properties import Property, TransientUnit, directive
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.tender import Parts, Tender, lasting_path, sandbox_path
from solo5_systemd.unit.translate import argv, declared, log_fields, scope, service

WEB = TaskName("web")
WORKLOAD = Workload(name=WEB, image="/srv/web app.hvt", memory=64 * MIB)
TENDER = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2)
PARTS = Parts(
    workload=WORKLOAD, image=stored(), tender=TENDER, reservation=Reservation(task=WEB), user=61200, systemd=257
)
NETWORKED = replace(
    PARTS, image=stored(nics="service"), reservation=Reservation(task=WEB, leases=(LEASE,)), groups=("kvm",)
)


def with_workload(parts: Parts = PARTS, **changes: object) -> Parts:
    return replace(parts, workload=replace(parts.workload, **changes))  # type: ignore[arg-type]


def names(unit: TransientUnit) -> list[str]:
    return [each.name for each in unit.properties]


def test_the_units_command_is_the_tenders_complete_command_line() -> None:
    parts = with_workload(NETWORKED, arguments=("--ipv4={net.service.ipv4_cidr}", "{name}"))
    line = (
        "/usr/bin/solo5-hvt",
        "--net:service=s5-1f00c0de",
        "--net-mac:service=02:00:5e:10:00:01",
        "--mem=54",
        "--",
        f"/var/lib/solo5/images/{SHA256}",
        "--ipv4=10.89.0.2/24",
        "web",
    )
    assert argv(parts) == line
    assert service(parts).value("ExecStart") == [("/usr/bin/solo5-hvt", list(line), False)]


def test_the_options_name_all_devices_and_end_with_the_memory() -> None:
    parts = replace(NETWORKED, disks=[disk("storage", path="/srv/a b,c.img")])
    assert parts.device_options(sandbox_path) == (
        "--net:service=s5-1f00c0de",
        "--net-mac:service=02:00:5e:10:00:01",
        "--block:storage=/run/solo5-disks/storage",
        "--block-sector-size:storage=512",
        f"--mem={parts.memory_mib}",
    )


@pytest.mark.parametrize("backing", [Backing.COPY, Backing.ARCHIVE])
def test_the_path_of_a_private_disk_has_the_reason_why_it_cannot_be_mounted_again(backing: Backing) -> None:
    assert sandbox_path(disk("data", path="/srv/with blank")) == "/run/solo5-disks/data"
    private = replace(disk("data"), backing=backing)
    assert sandbox_path(private) == "/run/solo5-disks/private-disk-ends-with-its-first-run/data"
    assert lasting_path(private) == "/run/solo5-disks/data"


def test_a_dollar_reaches_the_guest_and_no_variable_of_systemds_does() -> None:
    parts = with_workload(arguments=("$HOME", "${{HOME}}", "$$", "a$"))
    line = argv(parts)
    assert line[-4:] == ("$HOME", "${HOME}", "$$", "a$")
    assert service(parts).value("ExecStartEx") == [(line[0], list(line), ["no-env-expand"])]
    words = [*line[:-4], "$$HOME", "$${HOME}", "$$$$", "a$$"]
    assert service(replace(parts, systemd=252)).value("ExecStart") == [(line[0], words, False)]


@pytest.mark.parametrize("limit, memory_max", [(None, 64 * MIB), (100 * MIB, 100 * MIB), (INFINITY, INFINITY)])
def test_the_guests_memory_is_that_of_the_allotment_wherever_the_kernel_draws_the_line(
    limit: int | None, memory_max: int
) -> None:
    parts = with_workload(memory_max=limit)
    assert service(parts).value("MemoryMax") == memory_max
    assert f"--mem={PARTS.memory_mib}" in argv(parts)
    assert log_fields(parts)["SOLO5_MEMORY"] == str(64 * MIB)


def test_a_unit_stands_in_the_slice_that_is_requested_below_ours() -> None:
    assert service(with_workload(slice="solo5-batch.slice")).value("Slice") == "solo5-batch.slice"
    with pytest.raises(InvalidRequestError, match="Slice=system.slice: expected solo5.slice or a slice below it"):
        service(with_workload(slice="system.slice"))


def test_a_service_has_each_property_once() -> None:
    unit = service(NETWORKED)
    assert unit.name == "solo5-task-web.service"
    assert len(set(names(unit))) == len(unit.properties)
    expected = {
        "Type": "exec",
        "Description": "Solo5 unikernel web app.hvt (hvt)",
        "Wants": ["solo5-outcome@web.target"],
        "Requires": ["solo5-network@web.service"],
        "After": ["solo5-network@web.service"],
        "KillSignal": 1,
        "TimeoutStopUSec": 10_000_000,
        "IgnoreSIGPIPE": False,
        "StandardOutput": "journal",
        "SyslogIdentifier": "web",
        "SyslogFacility": 21,
        "SyslogLevelPrefix": False,
        "LogRateLimitIntervalUSec": 2_000_000,
        "LogRateLimitBurst": 2000,
        "Slice": "solo5.slice",
        "MemoryMax": 64 * MIB,
        "MemorySwapMax": 0,
        "TasksMax": 16,
        "SupplementaryGroups": ["kvm"],
    }
    assert {name: unit.value(name) for name in expected} == expected


def test_a_service_has_nothing_that_its_task_does_not_need() -> None:
    absent = {"Requires", "After", "CPUQuotaPerSecUSec", "CPUWeight", "IOAccounting"}
    assert not absent & set(names(service(PARTS)))
    disk = DiskRequest(disk=DeviceName("storage"), path="/srv/disk")
    assert service(with_workload(disks=(disk,))).value("IOAccounting") is True
    spt = replace(PARTS, tender=replace(TENDER, target=Target.SPT))
    assert service(spt).value("KillSignal") == 15, "not caught by it, as 1 by hvt"


@pytest.mark.parametrize("cpus, quota", [(1, 1_000_000), (0.5, 500_000), (1e-9, 10_000), (0.123, 130_000)])
def test_processors_are_whole_percents_of_each_second_and_never_none(cpus: float, quota: int) -> None:
    unit = service(with_workload(cpus=cpus, cpu_weight=50))
    assert (unit.value("CPUQuotaPerSecUSec"), unit.value("CPUWeight")) == (quota, 50)


def test_every_line_in_the_journal_has_the_fields_of_its_task() -> None:
    unit = service(with_workload(log_fields=(("NOMAD_JOB_NAME", "ä=b"),)))
    assert unit.value("LogExtraFields") == [
        b"SOLO5_TASK=web",
        rb"SOLO5_IMAGE=/srv/web\x20app.hvt",
        b"SOLO5_IMAGE_SHA256=" + SHA256.encode(),
        b"SOLO5_TENDER=hvt",
        b"SOLO5_MEMORY=67108864",
        "NOMAD_JOB_NAME=ä=b".encode(),
    ]


@pytest.mark.parametrize(
    "given, shown",
    [
        (None, "Solo5 unikernel web app.hvt (hvt)"),
        ("mine", "mine"),
        ("", ""),
        (" a\n[Service]\nExecStopPost=+/x\\", "a\\x0a[Service]\\x0aExecStopPost=+/x\\x5c"),
        ("\u202eא" + "b" * 300, "\\u202eא" + "b" * 248 + "…"),
    ],
)
def test_a_description_is_derived_where_none_is_given(given: str | None, shown: str) -> None:
    assert service(with_workload(description=given)).value("Description") == shown


def test_an_operators_property_takes_the_place_of_ours() -> None:
    unit = service(with_workload(properties=(("TimeoutStopSec", "60"), ("MemorySwapMax", "infinity"), ("Nice", "5"))))
    assert (unit.value("TimeoutStopUSec"), unit.value("MemorySwapMax"), unit.value("Nice")) == (60_000_000, INFINITY, 5)
    assert len(set(names(unit))) == len(unit.properties)


@pytest.mark.parametrize(
    "given, with_disk, without", [("4K", 4096, 4096), ("2G", 1 << 30, 2 << 30), ("infinity", 1 << 30, INFINITY)]
)
def test_the_size_of_files_is_only_lowered(given: str, with_disk: int, without: int) -> None:
    parts = with_workload(properties=(("LimitFSIZE", given),))
    unit = service(replace(parts, disks=(replace(disk(), size=1 << 30),)))
    assert (unit.value("LimitFSIZE"), names(unit).count("LimitFSIZE")) == (with_disk, 1)
    assert service(parts).value("LimitFSIZE") == without


ARCHIVE = archive_disk(DeviceName("config"), ArchiveRequest(credential="key"))
DISK = DiskRequest(disk=DeviceName("data"), path="/srv/data")


@pytest.mark.parametrize(
    "limits, disks, filtered",
    [
        ((), (), True),
        (("0",), (DISK,), True),
        (("1M",), (DISK,), False),
        (("infinity",), (), False),
        (("infinity",), (DISK, ARCHIVE), True),
        ((), (ARCHIVE,), True),
    ],
)
def test_a_core_dump_has_no_memory_but_for_an_operator_that_permits_core_files(
    limits: tuple[str, ...], disks: tuple[DiskRequest, ...], filtered: bool
) -> None:
    parts = with_workload(properties=tuple(("LimitCORE", limit) for limit in limits), disks=disks)
    for found in (service(parts).properties, declared(parts, "/srv/image", "solo5-web")):
        lines = [directive(each) for each in found if each.name == "CoredumpFilter"]
        assert lines == (["CoredumpFilter=0x0"] if filtered else [])


def test_an_operators_filter_comes_after_ours_and_takes_away_from_it() -> None:
    unit = service(with_workload(properties=(("SystemCallFilter", "~kill"),)))
    first, second = (each.value for each in unit.properties if each.name == "SystemCallFilter")
    assert isinstance(first, tuple)
    assert (first[0], second) == (True, (False, ["kill"]))


def test_a_scope_accounts_and_limits_and_confines_nothing() -> None:
    unit = scope(with_workload(NETWORKED, kind=UnitKind.SCOPE, properties=(("TasksMax", "32"),)), 4711)
    assert unit.name == "solo5-task-web.scope"
    own = ("Description", "PIDs", "TimeoutStopUSec", "Slice", "MemoryMax", "MemorySwapMax", "TasksMax")
    assert tuple(names(unit)) == own
    assert Property("PIDs", "au", [4711]) in unit.properties
    assert unit.value("TasksMax") == 32
    assert unit.marks == log_fields(NETWORKED)


RESOLVER = Resolver(servers=(IPv4Address("9.9.9.9"), IPv4Address("192.0.2.53")), search=("example.org",))


def test_name_servers_and_mirage_are_in_the_command_line() -> None:
    parts = with_workload(
        replace(NETWORKED, resolver=RESOLVER),
        arguments=("{mirage}", "--resolver={dns}", "{search}", "{hostname}", "{port.http}"),
        hostname="shop",
        port_labels=(("http", 8080),),
    )
    line = ("--ipv4=10.89.0.2/24", "--ipv4-gateway=10.89.0.1", "--resolver=9.9.9.9,192.0.2.53", "example.org", "shop")
    assert argv(parts)[-6:] == (*line, "8080")


def test_fields_have_name_servers_and_host_name_that_an_argument_has() -> None:
    parts = with_workload(replace(NETWORKED, resolver=RESOLVER), hostname="shop")
    assert not {"SOLO5_DNS", "SOLO5_DNS_SEARCH", "SOLO5_HOSTNAME"} & log_fields(parts).keys()
    assert log_fields(with_workload(parts, arguments=("{dns1}",)))["SOLO5_DNS"] == "9.9.9.9,192.0.2.53"
    assert log_fields(with_workload(parts, arguments=("{search}",)))["SOLO5_DNS_SEARCH"] == "example.org"
    assert log_fields(with_workload(parts, arguments=("{hostname}",)))["SOLO5_HOSTNAME"] == "shop"
    assert log_fields(with_workload(arguments=("{hostname}",)))["SOLO5_HOSTNAME"] == "web"
    timed = replace(NETWORKED, resolver=Resolver(ntp=ntp_servers(["192.0.2.123"])))
    assert log_fields(with_workload(timed, arguments=("{ntp}",)))["SOLO5_NTP"] == "192.0.2.123"
    with_hosts = with_workload(NETWORKED, hosts=hosts(["db:192.0.2.7", "up:host-gateway"]))
    assert "SOLO5_HOSTS" not in log_fields(with_hosts)
    assert log_fields(with_workload(with_hosts, arguments=("{hosts}",)))["SOLO5_HOSTS"] == "db=192.0.2.7,up=10.89.0.1"


def test_a_task_with_nics_runs_in_the_network_namespace_of_its_taps() -> None:
    shared, unconnected = (with_workload(each, namespace="/run/netns/group") for each in (NETWORKED, PARTS))
    for parts in (NETWORKED, shared):
        assert service(parts).value("NetworkNamespacePath") == "/run/netns/solo5-web"
    assert log_fields(shared)["SOLO5_NETWORK_NAMESPACE"] == "/run/netns/group"
    assert "NetworkNamespacePath" not in names(service(unconnected))
    for parts in (NETWORKED, unconnected):
        assert "SOLO5_NETWORK_NAMESPACE" not in log_fields(parts)
