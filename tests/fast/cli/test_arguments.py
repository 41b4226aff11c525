"""Parsers of option values: valid and invalid ones."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, DiskName, NetworkName
from solo5_systemd.cli.verbs import disk as disk_verb
from solo5_systemd.cli.verbs import each_task, logs, stats
from solo5_systemd.cli.verbs.run import derived_name
from solo5_systemd.network.model import MacAddress, NicRequest, Protocol
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.io_limits import IoLimits
from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest, DiskRequest, named_disk
from solo5_systemd.task import disks, networks, quantities, settings
from solo5_systemd.task.networks import host_endpoint
from solo5_systemd.task.settings import unique
from solo5_systemd.task.workload import Publish

T = TypeVar("T")
SERVICE, DISK = DeviceName("service"), DeviceName("storage")


def of(parse: Callable[[str], T], option: str) -> Callable[[str], T]:
    return partial(quantities.value_of, parse, what=option)


memory_size = of(quantities.size, "--memory")
cpus = of(quantities.cpus, "--cpus")
cpu_weight = of(partial(quantities.integer, low=1, high=10_000), "--cpu-weight")
idle_time = of(settings.idle_time, "--idle")
nic = of(networks.nic, "--net")
publish = of(networks.publish, "--publish")
disk = of(disks.disk, "--block")
unit_property = of(settings.unit_property, "--property")
log_field = of(settings.log_field, "--log-field")
journal_label = of(settings.journal_label, "--label")
namespace_path = of(networks.namespace_path, "--network-namespace")


def port(host: int, guest: int, nic: DeviceName | None = None, host_ip: str = "", protocol: str = "tcp") -> Publish:
    address = ip_address(host_ip) if host_ip else None
    return Publish(nic=nic, host_ip=address, host_port=host, port=guest, protocol=Protocol(protocol))


def file(path: str = "/a", **more: Any) -> DiskRequest:
    return DiskRequest(disk=DISK, path=path, **more)


def named(**more: Any) -> DiskRequest:
    return named_disk(DISK, DiskName("web"), **more)


def archived(*paths: str, sector_size: int = 512, **more: Any) -> DiskRequest:
    members = tuple(member(path, path) for path in paths)
    return archive_disk(DISK, ArchiveRequest(members=members, **more), sector_size=sector_size)


LAB = NicRequest(nic=SERVICE, network=NetworkName("lab"))
LAB_NIC = replace(LAB, ipv4=IPv4Address("10.1.2.3"), mac=MacAddress("02:00:5e:00:00:01"))
LIMITS = IoLimits(read_bps=10_000_000, write_bps=5_000_000, read_iops=500, write_iops=2000)
NEW = 1 << 20

GOOD: list[tuple[Callable[[str], object], str, object]] = [
    (memory_size, "134217728", 128 << 20),
    (memory_size, "1", 1),
    (memory_size, "64M", 64 << 20),
    (memory_size, "64MiB", 64 << 20),
    (memory_size, "64mb", 64 << 20),
    (memory_size, "1g", 1 << 30),
    (memory_size, "2T", 2 << 40),
    (cpus, "1.5", 1.5),
    (cpus, "0.01", 0.01),
    (cpu_weight, "10000", 10_000),
    (idle_time, "5", 5),
    (idle_time, "1min 30s", 90),
    (idle_time, "365d", 31_536_000),
    (logs._line_count, "0", 0),
    (each_task._seconds, "0.5", 0.5),
    (each_task._seconds, "0", 0),
    (each_task._stop_signal, "INT", 2),
    (each_task._stop_signal, "SIGTERM", 15),
    (each_task._stop_signal, "15", 15),
    (each_task._kill_signal, "kill", 9),
    (each_task._kill_signal, "2", 2),
    (nic, "service=default", NicRequest(nic=SERVICE)),
    (nic, "service=lab,mac=02:00:5E:00:00:01,ip=10.1.2.3", LAB_NIC),
    (nic, "service=lab,ip6=fd00::7", replace(LAB, ipv6=IPv6Address("fd00::7"))),
    (publish, "8080:80", (port(8080, 80),)),
    (publish, "8080:80/tcp", (port(8080, 80),)),
    (publish, "53:53/udp", (port(53, 53, protocol="udp"),)),
    (publish, "127.0.0.1:8080:80", (port(8080, 80, host_ip="127.0.0.1"),)),
    (publish, "0.0.0.0:8080:80", (port(8080, 80),)),
    (publish, "service:8080:80", (port(8080, 80, SERVICE),)),
    (publish, "0:8080:80", (port(8080, 80, DeviceName("0")),)),
    (publish, "service:127.0.0.1:1:65535/udp", (port(1, 65535, SERVICE, "127.0.0.1", "udp"),)),
    (publish, "[::1]:1:65535", (port(1, 65535, host_ip="::1"),)),
    (publish, "service:[::]:1:2", (port(1, 2, SERVICE, "::"),)),
    (publish, "8000-8001:80-81", (port(8000, 80), port(8001, 81))),
    (publish, "8000-8000:80", (port(8000, 80),)),
    (publish, "service:[::]:1-2:3-4/udp", (port(1, 3, SERVICE, "::", "udp"), port(2, 4, SERVICE, "::", "udp"))),
    (disk, "storage=/a", file()),
    (disk, "storage=a,b c=d", file("a,b c=d")),
    (disk, "storage=/a,sector-size=4096", file(sector_size=4096)),
    (disk, "storage=/a,read_bps=10M,write_bps=5M,read_iops=500,write_iops=2K", file(io=LIMITS)),
    (disk, "storage=disk:web,read_iops=500", replace(named(), io=IoLimits(read_iops=500))),
    (disk, "storage=/a,ro", file(private=True)),
    (disk, "storage=/a,b,create", file("/a,b,create")),
    (disk, "storage=disk:web,ephemeral", named(private=True)),
    (disk, "storage=disk:web,size=1M", named(create=NEW)),
    (disk, "storage=disk:web,size=1M,sector-size=4096,create", named(sector_size=4096, create=NEW)),
    (disk, "storage=files:/a,b/c,sector-size=4096", archived("/a", "b/c", sector_size=4096)),
    (disk, "storage=files:/a,format=raw", archived("/a", format=ArchiveFormat.RAW)),
    (disk, "storage=credential:x", archived(credential="x", format=ArchiveFormat.RAW)),
    (disk_verb._size, "64MiB", 64 << 20),
    (stats.interval, "0.1", 0.1),
    (stats.interval, "86400", 86400.0),
    (unit_property, "TasksMax=32", ("TasksMax", "32")),
    (unit_property, "SystemCallFilter=~fork vfork", ("SystemCallFilter", "~fork vfork")),
    (log_field, "TEAM=web=1", ("TEAM", "web=1")),
    (journal_label, "TEAM=web=1", ("TEAM", "web=1")),
    (namespace_path, "web", "/run/netns/web"),
    (namespace_path, "/proc/7/ns/net", "/proc/7/ns/net"),
]
BAD: dict[Callable[[str], object], list[str]] = {
    memory_size: [*"0 0M -1 64X M 1.5G 1e9 ９ 99999999999999999999 9999999999T".split(), "", "64 M", "64Mi B"],
    cpus: [*"0 0.001 -1 nan inf 1,5 1e3 9999999".split(), ""],
    cpu_weight: [*"0 10001 -1 1.5 idle".split(), ""],
    logs._line_count: [*"-1 all 1.5".split(), ""],
    each_task._seconds: [*"-1 10s inf nan".split(), ""],
    stats.interval: [*"0 0.09 86401 -1 1s inf nan".split(), ""],
    each_task._stop_signal: [*"KILL HUP USR1 0 9 99 SIGSIGTERM x".split(), ""],
    each_task._kill_signal: [*"HUP USR1 STOP CONT PIPE 0 64 x".split(), ""],
    nic: [
        *"service service= =default a-b=default service=../x service=default, service=d,ip service=d,vlan=3".split(),
        *"service=d,ip=1.2.3 service=d,ip=1.2.3.4,ip=1.2.3.5 service=d,ip=::1 service=d,mac=1".split(),
        *"service=d,ip6=1.2.3.4 service=d,ip6=fe80::1%a".split(),
        *"service=d,mac=01:00:5e:00:00:01 service=d,mac=00:00:00:00:00:00".split(),
        "",
    ],
    publish: [
        *"80 8080: :80 0:80 80:0 65536:80 80:65536 x:80 80:x -1:80 8080-8090:80 8080:80/ 8080:80/sctp".split(),
        *"8080:80/TCP 8080:80/tcp/udp ::8080:80 [::1:8080:80 [x]:8080:80 ::1]:8080:80".split(),
        *"a:b:1.2.3.4:1:1 127.0.0.1:service:80:80".split(),
        *"1-2:80-81- 2-1:80-81 1-2:81-80 1-2:80-82 1-257:1-257 65535-65536:1-2 0-1:1-2 1--2:1-2 -1-2:1-2".split(),
        *"1.2.3:80:80 host.example:80:80 ser-vice:80:80 1.2.3.4:1.2.3.4:1:1".split(),
        "",
    ],
    disk: [
        *"storage storage= =/a a/b=/a s=/a,sector-size= s=/a,sector-size=0 s=/a,sector-size=x".split(),
        *"s=/a,read_bps= s=/a,read_bps=1 s=/a,read_iops=1M,read_iops=1M s=disk:a,write_bps=x".split(),
        *"s=,sector-size=512 s=/a,sector-size=65536 s=/a,ro,ro s=disk: s=disk:a/b".split(),
        *"s=disk:a,create s=disk:a,size=0,create s=disk:a,size=1M,create,ro s=disk:a,b".split(),
        "s=disk:a,size=1M,size=1M",
        *"s=files: s=files:, s=files:.. s=files:/a,/a s=files:/a,format=zip s=credential: s=credential:a/b".split(),
        "",
    ],
    unit_property: [*"TasksMax TasksMax=x ExecStart=/bin/sh User=root =1 tasksmax=1".split(), ""],
    log_field: [*"TEAM team=web _TEAM=web SOLO5_TASK=x 1A=x".split(), "", "A" * 65 + "=x", "TEAM=a\nb"],
    journal_label: [*"TEAM team=web SOLO5_TASK=x NOMAD_JOB_ID=x MESSAGE=x PRIORITY=0".split(), "", "TEAM=a\nb"],
    namespace_path: ["", ".", "..", "a/b", "./web", "/run/netns/\0"],
}


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_a_valid_value_is_parsed(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in BAD.items() for text in texts])
def test_an_invalid_value_is_one_sentence(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(text)
    assert "expected" in raised.value.sentence
    assert raised.value.sentence.endswith(".")
    assert "\n" not in raised.value.sentence
    if parse in (publish, nic, disk, journal_label):  # the option and the value, once
        assert re.match(rf"--\S+ {re.escape(repr(text))}", raised.value.sentence), raised.value.sentence
        assert not text or raised.value.sentence.count(repr(text)) == 1


@pytest.mark.parametrize("parse", BAD)
@given(text=st.text(st.characters(), max_size=40))
def test_any_text_is_a_value_or_an_error_of_one_sentence(parse: Callable[[str], object], text: str) -> None:
    assert value_or_sentence(parse, text) is not None


def test_a_file_of_an_archive_has_the_name_that_was_given_and_its_path_in_full() -> None:
    found = disks.disk("storage=files:etc/a", lambda path: f"/tmp/x/{path}")
    assert found == archive_disk(DISK, ArchiveRequest(members=(member("etc/a", "/tmp/x/etc/a"),)))


def value_or_sentence(parse: Callable[[str], object], text: str) -> object:
    try:
        return parse(text)
    except InvalidRequestError as error:
        return error.sentence


def test_duplicates_are_refused_by_name_and_one_port_of_two_protocols_is_two_ports() -> None:
    with pytest.raises(InvalidRequestError, match="NIC service is given twice"):
        unique([NicRequest(nic=SERVICE), NicRequest(nic=SERVICE)], lambda nic: nic.nic, "NIC")
    tcp, udp = publish("53:53/tcp"), publish("53:53/udp")
    assert unique([*tcp, *udp], host_endpoint, "published port") == (*tcp, *udp)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8010-8000:80-90", "--publish '8010-8000:80-90': range 8010-8000 is reversed: expected 8000-8010."),
        (":8092:80", "--publish ':8092:80' is not a published port: expected [NIC:][HOSTIP:]HOSTPORT:PORT"),
        ("8000-8010:80-89", "leads from 11 ports to 10: expected as many of the guest as of the host"),
        ("8000-8010:80", "leads from 11 ports to 1: expected"),
        ("8000-8256:8000-8256", "range 8000-8256 has 257 ports: expected 256 or fewer, as many as a task can publish."),
        ("65000-65536:1-537", "port 65536 does not exist"),
        ("a-b:1-2", "'a-b' is not a port: expected 1 to 65535, or a range such as 8000-8010."),
    ],
)
def test_a_wrong_range_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        publish(text)
    assert words in refused.value.sentence


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("/srv/hello.spt", "hello-1a2b"),
        ("web.v2.hvt", "web-1a2b"),
        ("/srv/.hidden", "unikernel-1a2b"),
        ("/srv/-x y\n.hvt", "x-y--1a2b"),
        ("/srv/é", "unikernel-1a2b"),
        ("/srv/" + "a" * 300, "a" * 64 + "-1a2b"),
    ],
)
def test_a_name_is_derived_from_any_image(image: str, name: str) -> None:
    assert derived_name(image, "1a2b") == name


@given(image=st.text())
def test_a_derived_name_is_always_usable(image: str) -> None:
    assert derived_name(image, "0000").endswith("-0000")


def test_options_of_disks_are_known_and_may_be_spelled_as_in_a_job() -> None:
    with pytest.raises(InvalidRequestError, match=r"unknown option 'sector=4096': expected some of sector-size="):
        disk("s=disk:web,sector=4096")
    assert disk("s=/srv/a,sector_size=4096,read-bps=1M") == disk("s=/srv/a,sector-size=4096,read_bps=1M")
    with pytest.raises(InvalidRequestError, match="has sector-size twice"):
        disk("s=/srv/a,sector_size=4096,sector-size=512")
