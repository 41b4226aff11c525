"""What a start makes, or why it is refused: from a workload and facts alone."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any

import pytest
from tests.support.fakes.images import disk, stored
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.names import DeviceName, DiskName, NetworkName, Target, TaskName, UnitKind
from solo5_systemd.engine.plan import Plan, plan, resolver_networks
from solo5_systemd.network.model import UNNAMED, GuestNames, NicRequest, Protocol, Reservation
from solo5_systemd.settings.node_limits import Resource
from solo5_systemd.settings.resolver import UNSET, Resolver
from solo5_systemd.storage.archive import ARCHIVE_MAX, archive_disk, member
from solo5_systemd.storage.io_limits import IoLimits
from solo5_systemd.storage.model import ArchiveRequest, Backing, DiskRequest, named_disk
from solo5_systemd.task.policy import Ceilings, Policy
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import MIB, Publish, Workload
from solo5_systemd.unit.tender import Facts, Tender

STORAGE = DeviceName("storage")
DISK = DiskRequest(disk=STORAGE, path="/srv/disk.img")
WORKLOAD = Workload(name=TaskName("web"), image="/srv/app", publish=(Publish(host_port=8080, port=80),))
WITH_DISK = replace(WORKLOAD, disks=(DISK,))
HVT = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2)
VDA, LOOP = {"254:0": "vda"}, {"7:0": "loop0"}
DEFAULT, LAB, NAMESPACE = NetworkName("default"), NetworkName("lab"), NetworkName("namespace")
GROUP = "/run/netns/group"
FOUR, SIX = IPv4Address("9.9.9.9"), IPv6Address("2620:fe::fe")
ARCHIVE = archive_disk(STORAGE, ArchiveRequest(members=(member("a", "/a"),)))
LIMITED = replace(DISK, io=IoLimits(read_bps=10**6))


def facts(nics: str = "service", disks: str = "", target: Target = Target.HVT, **changes: Any) -> Facts:
    found = Facts(
        total_memory=1 << 30,
        image=stored(target, nics=nics, disks=disks),
        tender=HVT,
        disks=[disk(name) for name in disks.split()],
        user=61200,
        systemd=257,
        controllers=("cpu", "io", "memory"),
    )
    return replace(found, **changes)


STORING = facts(disks="storage")


def nic(name: str, network: NetworkName = DEFAULT) -> NicRequest:
    return NicRequest(nic=DeviceName(name), network=network)


def on(backing: Backing = Backing.FILE, **changes: Any) -> Facts:
    """Facts with one disk."""
    return replace(STORING, disks=[replace(disk(), backing=backing, **changes)])


def with_launcher(found: Facts) -> Facts:
    return replace(found, tender=replace(HVT, launcher="/usr/libexec/solo5-confine"))


GROUPED = {"namespace": GROUP}
SCOPED = {"kind": UnitKind.SCOPE}
ARCHIVED = {"disks": (ARCHIVE,)}


def port(host: int, **more: Any) -> Publish:
    return Publish(host_port=host, port=1, **more)


def properties(**texts: str) -> dict[str, Any]:
    return {"properties": tuple(texts.items())}


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        # the image's devices
        ({"disks": (DISK,)}, facts(), "disk storage is not declared"),
        ({}, STORING, "disk storage is not offered"),
        ({"nics": (nic("service"), nic("more"))}, facts(), "NIC more is not declared"),
        ({"nics": (nic("service"), nic("service"))}, facts(), "NIC service is offered 2 times"),
        ({"tender": Target.SPT}, facts(), "tender spt cannot run /srv/app: expected hvt, which it is built for."),
        # ports
        (
            *({"publish": (port(1, nic=DeviceName("x")),)}, facts("service admin")),
            "port 1 is published to NIC x: expected one of the image's NICs (service, admin).",
        ),
        ({}, facts(""), "port 8080 is published, and the image has no NIC: expected no port, or an image with one."),
        # memory
        ({"memory": MIB}, facts(), "memory 1M leaves the guest 0 MiB"),
        ({"memory_max": 64 * MIB}, facts(), "memory_max 64M is less than memory 128M"),
        ({"memory": 1 << 31}, facts(), "memory 2048M is more than this host has: expected at most 1024M."),
        # text that systemd would parse
        ({"arguments": ("a", "\udcff")}, facts(), "argument “\\xff” has the character \\xff: expected"),
        ({"arguments": ("a\nb",)}, facts(), "argument “a\\x0ab” has the character \\x0a: expected"),
        ({"arguments": ("C:\\",)}, facts(), "argument “C:\\” has a backslash at its end: expected"),
        ({"log_fields": (("K", "\u2028"),)}, facts(), "journal field “K=\\u2028” has the character"),
        ({"disks": (replace(DISK, path="/srv/a\rb"),)}, STORING, "disk path “/srv/a\\x0db” has the character \\x0d"),
        ({"disks": (DISK,)}, on(path="/srv/a\nb"), "disk path “/srv/a\\x0ab” has the character \\x0a"),
        # properties
        (properties(User="root"), facts(), "unit property 'User' cannot be set"),
        (
            *(properties(AppArmorProfile="solo5"), facts()),
            "unit property AppArmorProfile has no effect on this host: expected a kernel with apparmor enabled.",
        ),
        (properties(SELinuxContext="solo5"), facts(), "expected a kernel with selinux enabled."),
        (
            *({**SCOPED, **properties(TasksMax="5", LimitNOFILE="64")}, facts()),
            "unit property LimitNOFILE cannot be set for a scope",
        ),
        # disks
        ({"disks": (LIMITED,)}, on(io=LIMITED.io), "has I/O limits (read_bps=1M), and no block device"),
        (
            {"disks": (LIMITED,), "policy": Policy()},
            replace(STORING, controllers=("cpu", "memory")),
            "which this host does not enforce: expected the io controller of cgroup v2.",
        ),
        ({**ARCHIVED, **SCOPED}, on(Backing.ARCHIVE), "of a scope is an archive of files"),
        (ARCHIVED, on(Backing.ARCHIVE, size=ARCHIVE_MAX + 1), "archives of disks (storage) have 16777217"),
        ({**ARCHIVED, "memory": 17 * MIB}, on(Backing.ARCHIVE, size=16 * MIB - 512), "16 are archives). Ask for"),
        # a network namespace of other programs
        (
            *({**GROUPED, **SCOPED}, facts()),
            "task web is a scope in network namespace /run/netns/group: expected a service",
        ),
        (
            *({**GROUPED, "nics": (nic("service", LAB),)}, facts()),
            "NIC service is on network lab, which is not in network namespace /run/netns/group",
        ),
        # sleep
        ({**SCOPED, "idle_s": 60}, facts(), "task web is a scope, and to sleep: expected a service"),
        ({"idle_s": 60}, facts(""), "task web is to sleep, and the image has no NIC"),
        (
            *({**GROUPED, "idle_s": 60, "idle_stops": True}, facts()),
            "task web is to end when it is idle, and has its NICs in network namespace /run/netns/group: expected",
        ),
        # name servers
        (
            {"arguments": ("{dns}",), "resolver": Resolver(servers=(SIX,))},
            *(facts(ip_versions=frozenset({4})), "name servers 2620:fe::fe have IPv6 addresses only"),
        ),
    ],
)
def test_a_workload_that_cannot_be_started_is_refused_in_one_sentence(
    changes: dict[str, Any], found: Facts, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(replace(WORKLOAD, **changes), found)
    assert words in str(caught.value)


NOT_HERE = "is not allowed on this node: expected"
SMALL = Policy(ceilings=Ceilings(memory_mb=64))
NAMED = named_disk(STORAGE, DiskName("web-1"))


@pytest.mark.parametrize(
    ("policy", "changes", "found", "words"),
    [
        # NICs that the image's manifest has, and no request
        (
            Policy(ceilings=Ceilings(nics=1)),
            {},
            facts("service admin"),
            "the number of NICs is 2: expected at most 1, this node's",
        ),
        (Policy(networks=(LAB,)), {}, facts(), f"network default of NIC service {NOT_HERE} one of lab."),
        # ... and those of which a request names one
        (
            *(Policy(networks=(LAB,)), {"nics": (nic("admin"), nic("service", LAB))}, facts("service admin")),
            f"network default of NIC admin {NOT_HERE} one of lab",
        ),
        # ports that the task lists, and those that only its group has
        (
            *(Policy(ceilings=Ceilings(ports=1)), {"publish": (port(1, implied=True), port(2))}, facts()),
            "the number of ports is 2: expected at most 1",
        ),
        (
            *(Policy(ceilings=Ceilings(ports=0)), {"publish": (port(1, implied=True),)}, facts()),
            "the number of ports is 1: expected at most 0",
        ),
        (Policy(ceilings=Ceilings(blocks=0)), {"disks": (DISK,)}, STORING, "the number of disks is 1: expected"),
        # memory that the kernel would let a task have, beside that of the guest
        (SMALL, {"memory": 65 * MIB}, facts(), "memory is 65M: expected at most 64M"),
        (SMALL, {"memory": 64 * MIB, "memory_max": 65 * MIB}, facts(), "memory_max is 65M: expected at most 64M"),
        (SMALL, {"memory": 64 * MIB, "memory_max": INFINITY}, facts(), "memory_max is unlimited: expected"),
        (
            Policy(ceilings=Ceilings(image_mb=0)),
            {},
            facts(),
            "the size of the image in bytes is 4096: expected at most 0",
        ),
        # a tender that the image's manifest has, and a type of unit that a default has
        (
            *(Policy(allowed_tenders=(Target.HVT,)), {}, facts(target=Target.SPT)),
            f"tender spt, which the image is built for, {NOT_HERE} hvt",
        ),
        (Policy(), SCOPED, facts(), f"unit type scope {NOT_HERE} service."),
        # named disks, and new ones
        (
            *(Policy(), {"disks": (NAMED,)}, STORING),
            f"disk storage: named disk 'web-1' {NOT_HERE} one that matches a pattern",
        ),
        (
            *(Policy(allowed_disks=("db-*", "w")), {"disks": (NAMED,)}, STORING),
            f"disk storage: named disk 'web-1' {NOT_HERE} one that matches db-* or w",
        ),
        (
            *(
                Policy(allowed_disks=("*",), ceilings=Ceilings(disk_mb=1)),
                {"disks": (replace(NAMED, create=2 * MIB),)},
                STORING,
            ),
            "the size of a new disk in bytes is 2097152: expected at most 1048576",
        ),
    ],
)
def test_policy_is_checked_against_what_will_be_made(
    policy: Policy, changes: dict[str, Any], found: Facts, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(replace(WORKLOAD, policy=policy, **changes), found)
    assert caught.value.sentence.startswith(words)
    assert "plugin.solo5.config" in caught.value.hint or "Set the network of NIC" in caught.value.hint


def test_what_is_at_the_ceilings_is_planned() -> None:
    """A port counts once for all protocols; a group's ports do not count for an image without NICs."""
    policy = Policy(
        networks=(DEFAULT,),
        allowed_tenders=(Target.HVT, Target.SPT),
        allowed_disks=("web-*",),
        ceilings=Ceilings(memory_mb=64, nics=2, blocks=1, ports=1, image_mb=1, disk_mb=2),
    )
    publish = tuple(Publish(host_port=1, port=1, protocol=each) for each in Protocol)
    named = named_disk(STORAGE, DiskName("web-1"), create=2 * MIB)
    workload = replace(WORKLOAD, policy=policy, memory=64 * MIB, publish=publish, disks=(named,))
    assert len(plan(workload, facts("service admin", "storage")).request.ports) == 2
    group = (Publish(host_port=1, port=1, implied=True), Publish(host_port=2, port=1, implied=True))
    assert plan(replace(workload, publish=group, disks=()), facts("", target=Target.SPT)).request.ports == ()


@pytest.mark.parametrize(
    ("named", "offered", "expected"),
    [
        ("service", (), [("service", "default")]),
        ("service admin", (), [("service", "default"), ("admin", "default")]),
        ("left right", (nic("right", LAB), nic("left")), [("left", "default"), ("right", "lab")]),
        ("", (), []),
    ],
)
def test_nics_are_in_the_order_of_the_manifest_and_by_default_on_the_default_network(
    named: str, offered: tuple[NicRequest, ...], expected: list[tuple[str, str]]
) -> None:
    found = plan(replace(WORKLOAD, nics=offered, publish=()), facts(named))
    assert [(each.nic, each.network) for each in found.request.nics] == expected


@pytest.mark.parametrize(
    ("network", "expected"), [("default", "namespace"), ("namespace", "namespace"), ("none", "none")]
)
def test_a_nic_in_a_namespace_is_on_its_network_unless_it_is_on_no_bridge(network: str, expected: str) -> None:
    found = plan(replace(WORKLOAD, namespace=GROUP, nics=(nic("service", NetworkName(network)),)), facts())
    assert [each.network for each in found.request.nics] == [expected]


@pytest.mark.parametrize(
    ("nics", "named", "reached"),
    [
        ("service", None, "service"),
        ("first service", None, "service"),
        ("service admin", "admin", "admin"),
        ("left right", "right", "right"),
        ("left right", None, "left"),
    ],
)
def test_a_port_is_published_to_the_named_nic_or_to_service_or_to_the_first(
    nics: str, named: str | None, reached: str
) -> None:
    publish = Publish(nic=DeviceName(named) if named else None, host_ip=FOUR, host_port=8080, port=80)
    found = plan(replace(WORKLOAD, publish=(publish,)), facts(nics))
    assert found.request.ports == (publish.to(DeviceName(reached)),)


@pytest.mark.parametrize("properties", [(), (("AppArmorProfile", "-solo5"),)])
def test_a_profile_that_may_be_ignored_needs_no_security_module(properties: tuple[tuple[str, str], ...]) -> None:
    assert plan(replace(WORKLOAD, properties=properties), facts()).unit.name == "solo5-task-web.service"
    enforced = replace(WORKLOAD, properties=(("AppArmorProfile", "solo5"),))
    assert plan(enforced, facts(security_modules=("apparmor",))).unit.name == "solo5-task-web.service"


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        (on(device=(7, 0), devices=LOOP), True),
        (on(device=(254, 0), devices=VDA | LOOP), True),  # a mapped device passes the requests of its tender on
        (on(devices=LOOP), False),  # a file on a file system there
        (on(device=(254, 0), devices=VDA), False),
        (with_launcher(on(device=(7, 0), devices=LOOP)), False),
    ],
)
def test_a_loop_device_is_a_disk_with_the_launcher_only(found: Facts, *, refused: bool) -> None:
    if refused:
        with pytest.raises(HostError, match="is a loop device, which a tender could have another file behind"):
            plan(WITH_DISK, found)
    else:
        assert plan(WITH_DISK, found).disks == found.disks


def test_limits_of_a_disk_are_properties_of_its_unit() -> None:
    workload = replace(WORKLOAD, disks=(LIMITED,))
    for controllers in (("io",), ()):  # without the controller, where the operator permits it
        found = plan(workload, replace(on(devices=VDA, io=LIMITED.io), controllers=controllers))
        assert found.unit.value("IOReadBandwidthMax") == [("/dev/block/254:0", 10**6)]


def test_archives_are_memory_of_the_task() -> None:
    plain = plan(replace(WITH_DISK, memory=64 * MIB), STORING)
    archived = on(Backing.ARCHIVE, size=16 * MIB - 512)
    found = plan(replace(WORKLOAD, disks=(ARCHIVE,), memory=64 * MIB), archived)
    assert found.memory_mib == plain.memory_mib - 16
    assert found.unit.value("MemoryMax") == 48 * MIB + 512
    unlimited = plan(replace(WORKLOAD, disks=(ARCHIVE,), memory=64 * MIB, memory_max=INFINITY), archived)
    assert unlimited.unit.value("MemoryMax") == INFINITY


FOUND = Resolver(servers=(IPv4Address("192.0.2.53"),), search=("host.example",))
BOTH = Resolver(servers=(SIX, FOUR))


@pytest.mark.parametrize(
    ("changes", "resolver", "versions", "expected"),
    [
        ({"arguments": ("{dns}",)}, FOUND, {4}, FOUND),
        ({"arguments": ("{search}",)}, FOUND, {4}, FOUND),
        ({"arguments": ("{dns}",), "resolver": Resolver(servers=(FOUR,))}, FOUND, {4}, replace(FOUND, servers=(FOUR,))),
        ({"arguments": ("{dns}",), "resolver": BOTH}, UNSET, {4}, Resolver(servers=(FOUR,))),
        ({"arguments": ("{dns}",), "resolver": BOTH}, UNSET, {4, 6}, BOTH),
        ({"arguments": ("{dns}",), "resolver": BOTH, "namespace": GROUP}, UNSET, {4}, BOTH),  # its leases decide
        ({"arguments": ("{name}", "{{dns}}")}, UNSET, set(), UNSET),
        ({"resolver": Resolver(servers=(SIX,))}, UNSET, set(), Resolver(servers=(SIX,))),  # no argument has it
    ],
)
def test_name_servers_are_the_workloads_and_then_those_of_network_and_host(
    changes: dict[str, Any], resolver: Resolver, versions: set[int], expected: Resolver
) -> None:
    found = plan(replace(WORKLOAD, **changes), facts(resolver=resolver, ip_versions=frozenset(versions)))
    assert found.resolver == expected


def test_name_servers_are_those_of_the_primary_nics_network_first() -> None:
    assert resolver_networks([nic("admin", LAB), nic("service")]) == ["default", "lab"]
    assert resolver_networks([nic("left", LAB), nic("right")]) == ["lab", "default"]
    assert resolver_networks([]) == []


@pytest.mark.parametrize(("six", "expected"), [(None, Resolver(servers=(FOUR,))), (IPv6Interface("fd00::7/64"), BOTH)])
def test_in_a_namespace_the_leases_show_which_name_servers_are_reached(
    six: IPv6Interface | None, expected: Resolver
) -> None:
    found = plan(replace(WORKLOAD, namespace=GROUP, arguments=("{dns}",), resolver=BOTH), facts())
    lease = replace(LEASE, ipv4=IPv4Interface("10.1.0.2/24"), ipv6=six)
    assert found.reserved(Reservation(task=found.workload.name, leases=(lease,))).resolver == expected


def test_a_guest_gets_names_by_dhcp_where_a_network_has_a_server() -> None:
    workload = replace(WORKLOAD, hostname="shop")
    assert plan(workload, facts()).request.names == UNNAMED
    served = facts(by_dhcp=True, resolver=FOUND, ip_versions=frozenset({4}))
    assert plan(workload, served).request.names == GuestNames(resolver=FOUND, hostname="shop")


def claimed(found: Plan) -> dict[str, int]:
    return {key: amount for key, amount in found.claim.amounts.items() if amount}


def test_a_task_takes_its_ports_addresses_image_and_copies_of_the_node() -> None:
    publish = tuple(Publish(host_port=8080, port=80, protocol=each) for each in Protocol)
    workload = replace(WITH_DISK, publish=publish)
    image = stored()
    base = {Resource.TASKS: 1, Resource.PORTS: 1, f"{Resource.IMAGES}/{image.sha256}": image.size}
    copy = on(Backing.COPY, size=1000, copied=300)
    assert claimed(plan(workload, copy)) == {
        **base, f"{Resource.ADDRESSES}/default": 1, Resource.COPIES: 1000, Resource.COPIED: 300,
    }  # fmt: skip
    in_group = plan(replace(workload, namespace=GROUP, disks=(ARCHIVE,)), on(Backing.ARCHIVE, size=512))
    assert claimed(in_group) == {**base, Resource.ARCHIVES: 512}


def test_arguments_are_checked_with_the_leases_that_they_have() -> None:
    found = plan(replace(WORKLOAD, arguments=("{net.service.nope}",)), facts())
    with pytest.raises(Solo5Error, match="unknown placeholder"):
        _ = found.reserved(Reservation(task=found.workload.name, leases=(LEASE,))).unit
