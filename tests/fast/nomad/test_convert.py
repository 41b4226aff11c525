"""Nomad's task and a job's config as a workload: what can be honoured, and one sentence for what cannot."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import pytest
from tests.fast.nomad.values import ALLOCATION, TASK_ID, in_group, options_of, port, task_config

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, DiskName, NetworkName, Target, UnitKind
from solo5_systemd.network.model import Limits, MacAddress, NicRequest
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.plugin_config import TIGHTENING, Defaults, PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import (
    USUAL,
    cpu_weight,
    image_candidates,
    logging_of,
    merged_properties,
    name_of,
    workload_of,
)
from solo5_systemd.settings.egress import destination
from solo5_systemd.settings.node_limits import Tenant
from solo5_systemd.settings.rate import Rate
from solo5_systemd.settings.resolver import resolver
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import DiskRequest, named_disk
from solo5_systemd.task.placeholders import expand, verbatim
from solo5_systemd.task.policy import Ceilings
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import MIB, Workload

PLUGIN = PluginConfig()
SERVICE = DeviceName("service")
TASK = wire.NetworkIsolationSpec.TASK
HOST = wire.NetworkIsolationSpec.HOST


def workload(task: wire.TaskConfig, plugin: PluginConfig = PLUGIN) -> Workload:
    return workload_of(task, options_of(task), plugin, 8)


def refusal(task: wire.TaskConfig, plugin: PluginConfig = PLUGIN) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        workload(task, plugin)
    return str(caught.value)


# --- a whole task --------------------------------------------------------------------------------------------


def test_a_minimal_job_gets_a_plain_workload() -> None:
    assert workload(task_config()) == Workload(
        name=name_of(TASK_ID),
        image="/srv/app",
        roots=("/alloc/web", "/alloc/alloc"),
        memory=64 * MIB,
        cpu_weight=50,
        slice="solo5-shared.slice",
        log_fields=(
            ("NOMAD_NAMESPACE", "default"),
            ("NOMAD_JOB_NAME", "shop"),
            ("NOMAD_JOB_ID", "shop"),
            ("NOMAD_GROUP_NAME", "front"),
            ("NOMAD_TASK_NAME", "web"),
            ("NOMAD_ALLOC_ID", ALLOCATION),
            ("NOMAD_ALLOC_DIR", "/alloc/alloc"),
        ),
        tenant=Tenant(namespace="default", job="shop"),
        description="Nomad task shop/front/web",
        policy=PLUGIN,
    )


def test_settings_of_a_job_are_in_the_workload() -> None:
    made = workload(
        task_config(
            unikernel="local/web.spt",
            args=["-v", "x"],
            nic={
                "service": {
                    "network": "lab",
                    "ip": "10.1.2.3",
                    "ip6": "fd00::7",
                    "mac": "02:00:5E:10:00:01",
                    "egress": [],
                    "rate": ["sent=2M"],
                    "routes": ["192.168.2.0/24"],
                }
            },
            egress=["10.0.0.0/8"],
            rate=["sent=1M"],
            block={"storage": {"source": "local/disk", "sector_size": 4096}},
            tender="spt",
            unit="scope",
            quiet=True,
            properties={"TasksMax": "16"},
        ),
        replace(PLUGIN, block_paths=("/srv/disks",)),
    )
    assert (made.image, made.arguments) == ("/alloc/web/local/web.spt", ("--solo5:quiet", "-v", "x"))
    assert made.nics == (
        NicRequest(
            nic=SERVICE,
            network=NetworkName("lab"),
            ipv4=IPv4Address("10.1.2.3"),
            mac=MacAddress("02:00:5e:10:00:01"),
            ipv6=IPv6Address("fd00::7"),
            limits=Limits(egress=(), rate=Rate(sent=2 * 10**6), routes=(IPv4Network("192.168.2.0/24"),)),
        ),
    )
    assert made.limits == Limits(egress=(destination("10.0.0.0/8"),), rate=Rate(sent=10**6))
    assert made.disks == (
        DiskRequest(
            disk=DeviceName("storage"),
            path="/alloc/web/local/disk",
            sector_size=4096,
            roots=("/alloc/web", "/alloc/alloc", "/srv/disks"),
            allocation=("/alloc/web", "/alloc/alloc"),
            holder="job default/shop",
        ),
    )
    assert (made.tender, made.kind, made.properties) == (Target.SPT, UnitKind.SCOPE, (("TasksMax", "16"),))


def test_the_operators_defaults_hold_where_the_job_does_not_say() -> None:
    defaults = Defaults(
        tender=Target.HVT, unit=UnitKind.SCOPE, quiet=True, cpu_hard_limit=True, properties=(("TasksMax", "8"),)
    )
    plugin = replace(PLUGIN, defaults=defaults)
    made = workload(task_config(), plugin)
    assert (made.tender, made.kind, made.arguments, made.cpus) == (Target.HVT, UnitKind.SCOPE, ("--solo5:quiet",), 2.0)
    assert made.properties == (("TasksMax", "8"),)
    explicit = task_config(
        tender="spt", unit="service", quiet=False, cpu_hard_limit=False, properties={"TasksMax": "7"}
    )
    made = workload(explicit, plugin)
    assert (made.tender, made.kind, made.arguments, made.cpus) == (Target.SPT, UnitKind.SERVICE, (), None)
    assert made.properties == (("TasksMax", "7"),)


# --- what no unikernel can -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        wire.TaskConfig(user=""),
        wire.TaskConfig(user="solo5"),
        wire.TaskConfig(network_isolation_spec=wire.NetworkIsolationSpec(mode=HOST)),
        wire.TaskConfig(dns=wire.DNSConfig()),
    ],
    ids=["no user", "the user of every tender", "the host's network", "an empty dns block"],
)
def test_what_holds_for_every_task_may_be_requested(change: wire.TaskConfig) -> None:
    task = task_config()
    task.MergeFrom(change)
    assert workload(task) == workload(task_config())


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda task: setattr(task, "user", "root"), "sets user 'root': every task runs as a user of its own"),
        (lambda task: task.mounts.add(task_path="/data"), "has a volume_mount (/data) that no block uses"),
        (
            lambda task: task.MergeFrom(
                wire.TaskConfig(env={"CSI_ENDPOINT": "unix:///csi/csi.sock"}, mounts=[wire.Mount(task_path="/csi")])
            ),
            "has a csi_plugin block: a unikernel has no socket that Nomad could call",
        ),
        (lambda task: task.devices.add(host_path="/dev/nvidia0"), "has a device (/dev/nvidia0)"),
        (lambda task: task.network_isolation_spec.MergeFrom(wire.NetworkIsolationSpec(mode=TASK)), '"bridge"'),
        (lambda task: task.dns.servers.append("1.1.1.1"), "group with network.dns.servers, which has no effect"),
        (lambda task: task.dns.searches.append("lan"), "in a group with network.dns.searches, which has no effect"),
        (lambda task: task.dns.options.append("ndots:2"), "in a group with network.dns.options (ndots:2)"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_never_left_out(
    change: Callable[[wire.TaskConfig], object], words: str
) -> None:
    task = task_config()
    change(task)
    sentence = refusal(task)
    assert sentence.startswith("task web ")
    assert words in sentence


def with_dns(*args: str, servers: Sequence[str] = (), searches: Sequence[str] = (), **config: Any) -> wire.TaskConfig:
    task = task_config(args=args, **config)
    task.dns.servers.extend(servers)
    task.dns.searches.extend(searches)
    return task


def test_name_servers_that_an_argument_has_are_the_workloads() -> None:
    task = with_dns("--resolver={dns1}", "{search}", servers=["9.9.9.9", "192.0.2.53"], searches=["lan"])
    assert workload(task).resolver == resolver(["9.9.9.9", "192.0.2.53"], ["lan"])


def test_hosts_reach_the_workload_where_an_argument_has_them() -> None:
    given = ["db:192.0.2.7", "up:host-gateway"]
    assert [*map(str, workload(task_config(args=["{hosts}"], extra_hosts=given)).hosts)] == given
    task = with_dns("{dns}", "{ntp}", servers=["9.9.9.9"], ntp=["192.0.2.123"])
    assert [*map(str, workload(task).resolver.servers + workload(task).resolver.ntp)] == ["9.9.9.9", "192.0.2.123"]
    found = refusal(task_config(args=["{{hosts}}"], extra_hosts=given))
    assert "config.extra_hosts has no effect: expected {hosts} in an argument of the guest." in found
    assert "config.extra_hosts: host 'db' is not usable" in refusal(task_config(args=["{hosts}"], extra_hosts=["db"]))


def test_host_name_is_the_jobs_and_an_empty_egress_list_permits_nothing() -> None:
    made = workload(task_config(hostname="shop", egress=[], args=["{hostname}"]))
    assert (made.hostname, made.limits) == ("shop", Limits(egress=()))
    assert "config.hostname has no effect: expected {hostname} in an argument" in refusal(task_config(hostname="shop"))
    assert "config.ntp has no effect: expected {ntp} in an argument" in refusal(task_config(ntp=["192.0.2.123"]))
    assert "config.hostname 'a b': host name 'a b' is not a domain name" in refusal(task_config(hostname="a b"))


def test_name_servers_that_no_argument_has_are_refused_with_the_remedy() -> None:
    hint = 'Add an argument that the guest takes, such as "--dns-servers={dns.udp}", or remove the setting.'
    assert hint in refusal(with_dns("{search}", "{{dns}}", servers=["9.9.9.9"]))
    assert "expected {search} in an argument" in refusal(with_dns("{dns}", servers=["9.9.9.9"], searches=["lan"]))


def test_ports_of_the_group_have_their_labels() -> None:
    assert workload(task_config(port("http", 8080, to=80), port("dns", 53), ports=["dns"])).port_labels == (
        ("http", 8080),
        ("dns", 53),
    )


@pytest.mark.parametrize("name", ["", ".", "..", "alloc", "a/b"])
def test_a_name_whose_directory_would_be_another_is_refused(name: str) -> None:
    """Nomad takes `..`: the files of all allocations would be the task's own."""
    task = task_config()
    task.name = name
    assert f"task name {name!r} is outside of the task's directory" in refusal(task)


# --- resources -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "limit"), [(0, None), (256, 256 * MIB), (-1, INFINITY)])
def test_memory_max_is_the_limit_unless_it_is_not_given(given: int, limit: int | None) -> None:
    made = workload(task_config(memory_mb=64, memory_max_mb=given))
    assert (made.memory, made.memory_max) == (64 * MIB, limit)


@pytest.mark.parametrize(
    ("shares", "weight"), [(0, 1), (1, 1), (100, 10), (500, 50), (100_000, 10_000), (1 << 40, 10_000)]
)
def test_megahertz_become_a_weight_that_systemd_takes(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


@pytest.mark.parametrize(("part", "cpus"), [(0.25, 2.0), (1.0, 8.0), (0.0, None)])
def test_a_hard_limit_is_the_tasks_part_of_all_processors(part: float, cpus: float | None) -> None:
    task = task_config(cpu_hard_limit=True)
    task.resources.linux_resources.PercentTicks = part
    assert workload(task).cpus == cpus


def test_reserved_cores_are_the_tasks_own_and_what_else_the_operator_sets_stays() -> None:
    others = (("TasksMax", "8"), ("AllowedMemoryNodes", "0"), ("LogRateLimitBurst", "1000"))
    plugin = replace(PLUGIN, defaults=Defaults(properties=(("AllowedCPUs", "0-7"), *others)))
    task = task_config()
    task.stdout_path = "/alloc/logs/.web.stdout.fifo"
    task.resources.linux_resources.cpuset_cpus = "2-3"
    made = workload(task, plugin)
    assert made.slice == "solo5-reserved.slice"
    assert dict(made.properties) == {"AllowedCPUs": "2-3", **dict(others)}


def test_a_property_that_the_operator_does_not_allow_is_refused() -> None:
    sentence = refusal(task_config(properties={"Nice": "-5"}))
    assert sentence.startswith("config.properties.Nice may not be set by a job: expected one of LimitAS, ")
    allowed = replace(PLUGIN, allowed_properties=("Nice",))
    assert workload(task_config(properties={"Nice": "-5"}), allowed).properties == (("Nice", "-5"),)
    assert "expected one of Nice." in refusal(task_config(properties={"TasksMax": "5"}), allowed)


ALLOWED = (*TIGHTENING, "IOReadBandwidthMax")
OPERATOR = (("TasksMax", "8"), ("IOReadBandwidthMax", "/dev/sda 10M"), ("SystemCallFilter", "~fork"))


@pytest.mark.parametrize(
    "key, text, operator",
    [
        ("TasksMax", "17", ()),
        ("TasksMax", "infinity", ()),
        ("TasksMax", "9", OPERATOR),
        ("LimitCORE", "1", ()),
        ("LimitCORE", "infinity", ()),
        ("LimitNOFILE", "1000000", ()),
        ("RuntimeMaxSec", "61s", (("RuntimeMaxSec", "1min"),)),
        ("MemoryHigh", "infinity", (("MemoryHigh", "64M"),)),
        ("IOReadBandwidthMax", "/dev/sda 11M", OPERATOR),
    ],
)
def test_a_job_loosens_nothing(key: str, text: str, operator: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        merged_properties([(key, text)], operator, ALLOWED)
    assert f"config.properties.{key} is {text!r}" in refused.value.sentence
    assert dict((*USUAL.items(), *operator))[key] in refused.value.sentence


@pytest.mark.parametrize(
    "key, text",
    [("TasksMax", "8"), ("TasksMax", "1"), ("LimitCORE", "0"), ("LimitNOFILE", "524288"), ("MemoryHigh", "32M")],
)
def test_a_job_tightens_what_holds(key: str, text: str) -> None:
    assert dict(merged_properties([(key, text)], OPERATOR, ALLOWED))[key] == text


def test_an_operator_raises_what_a_job_may_have() -> None:
    job = (("TasksMax", "100"),)
    assert merged_properties(job, [("TasksMax", "infinity")], ALLOWED) == job


def test_what_the_operator_takes_away_stays_away() -> None:
    """A filter of system calls is added to the operator's, and a limit of one device takes none from another."""
    job = (("SystemCallFilter", "~vfork"), ("IOReadBandwidthMax", "/dev/sdb 1G"), ("TasksMax", "7"))
    assert merged_properties(job, OPERATOR, ALLOWED) == (*OPERATOR[1:], *job)


def test_a_malformed_value_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="TasksMax=many: expected a whole number"):
        merged_properties([("TasksMax", "many")], (), ALLOWED)


# --- image and disks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unikernel", "candidates"),
    [
        ("web.hvt", ("/alloc/web/web.hvt", "/srv/images/web.hvt", "/opt/web.hvt")),
        ("local/web.hvt", ("/alloc/web/local/web.hvt", "/srv/images/local/web.hvt", "/opt/local/web.hvt")),
        ("/srv/images/web.hvt", ("/srv/images/web.hvt",)),
        ("../alloc/data/web.hvt", ("/alloc/alloc/data/web.hvt", "/srv/alloc/data/web.hvt", "/alloc/data/web.hvt")),
    ],
)
def test_an_image_is_looked_for_in_the_task_directory_and_then_among_the_operators(
    unikernel: str, candidates: tuple[str, ...]
) -> None:
    task = task_config(unikernel=unikernel)
    plugin = replace(PLUGIN, image_paths=("/srv/images", "/opt"))
    assert image_candidates(options_of(task), task, plugin) == candidates


def test_an_image_must_lie_below_what_nomad_brought_or_the_operator_offers() -> None:
    made = workload(task_config(), replace(PLUGIN, image_paths=("/srv/images",)))
    assert made.roots == ("/alloc/web", "/alloc/alloc", "/srv/images")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"unikernel": "a\0b"}, "config.unikernel 'a\\x00b' is not a path: it contains a NUL byte."),
        ({"block": {"d": {"source": "\0"}}}, "config.block \"d\".source '\\x00' is not a path"),
    ],
)
def test_a_path_with_a_nul_byte_is_none(keys: dict[str, Any], words: str) -> None:
    assert words in refusal(task_config(**keys))


def test_a_disk_has_the_jobs_limits_within_the_operators() -> None:
    plugin = replace(PLUGIN, ceilings=Ceilings(io=IoLimits(read_bps=50_000_000, write_bps=20_000_000)))
    made = workload(
        task_config(
            block={
                "data": {"disk": "web-1", "io": {"read_bps": "10M", "read_iops": "500"}},
                "plain": {"source": "local/disk"},
                "config": {"files": ["local/a"]},
            }
        ),
        plugin,
    )
    limits = {each.disk: each.io for each in made.disks}
    assert limits == {
        "data": IoLimits(read_bps=10_000_000, write_bps=20_000_000, read_iops=500),
        "plain": IoLimits(read_bps=50_000_000, write_bps=20_000_000),
        "config": NO_IO_LIMITS,
    }
    task = task_config(block={"data": {"disk": "web-1", "io": {"read_bps": "51M"}}})
    assert refusal(task, plugin).startswith(
        'config.block "data".io.read_bps is 51M: expected 50M per second or less, this node\'s ceiling.'
    )


def test_named_disks_and_copies_are_in_the_workload() -> None:
    made = workload(
        task_config(
            block={
                "data": {"disk": "web-1", "size": "64M", "create": True},
                "golden": {"disk": "web-0", "read_only": True, "sector_size": 4096},
                "file": {"source": "local/disk", "ephemeral": True},
            }
        )
    )
    data, golden, file = made.disks
    assert data == named_disk(DeviceName("data"), DiskName("web-1"), create=64 * MIB)
    assert golden == named_disk(DeviceName("golden"), DiskName("web-0"), sector_size=4096, private=True)
    assert (file.private, file.name) == (True, None)


def test_arguments_that_are_verbatim_follow_the_others_and_have_no_placeholders() -> None:
    made = workload(task_config(args=["{name}"], verbatim=['{"a":1}', "{hostname}", "}{"]))
    assert made.arguments[-4:] == ("{name}", '{{"a":1}}', "{{hostname}}", "}}{{")
    assert expand(made.arguments[-3:], {}) == ('{"a":1}', "{hostname}", "}{")


@pytest.mark.parametrize("value", ['{"a":1}', "{hostname}", "{"])
def test_braces_of_a_dispatcher_are_no_placeholders(value: str) -> None:
    task = task_config(args=["{mirage}", f"--json={value}"])
    task.env["NOMAD_META_JSON"] = task.env["NOMAD_META_json"] = value
    with pytest.raises(InvalidRequestError, match="config.args has the value of NOMAD_META_json, .* in verbatim"):
        workload(task)
    task = task_config(args=["{mirage}", "--name={name}"], verbatim=[f"--json={value}"])
    task.env["NOMAD_META_json"] = value if value != "{" else "plain"
    assert workload(task).arguments[-1] == f"--json={verbatim(value)}"


def test_files_are_those_of_the_task() -> None:
    [disk] = workload(
        task_config(block={"conf": {"files": ["local/a", "secrets/", "alloc/data/x"], "format": "tar"}})
    ).disks
    assert disk.roots == ("/alloc/web/local", "/alloc/web/secrets", "/alloc/alloc")
    assert disk.archive is not None
    assert [*disk.archive.members] == [
        ("local/a", "/alloc/web/local/a"),
        ("secrets", "/alloc/web/secrets"),
        ("alloc/data/x", "/alloc/alloc/data/x"),
    ]
    assert disk.archive.excluded == ("/alloc/web/secrets/api.sock", "/alloc/web/secrets/.nomad-mount")
    [disk] = workload(task_config(block={"conf": {"files": ["local/a"], "strip": True}})).disks
    assert disk.archive is not None
    assert [*disk.archive.members] == [("", "/alloc/web/local/a")]


def test_labels_are_fields_in_addition_to_nomads() -> None:
    fields = workload(task_config(labels={"TEAM": "web", "TIER": "1 ä"})).log_fields
    assert fields[:2] == (("TEAM", "web"), ("TIER", "1 ä"))
    assert dict(fields)["NOMAD_TASK_NAME"] == "web"


# --- console -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "job", "plugin", "logging"),
    [
        ("/alloc/alloc/logs/.web.stdout.fifo", None, PLUGIN, Logging.NOMAD),
        ("/alloc/alloc/logs/.web.stdout.fifo", "journald", PLUGIN, Logging.JOURNALD),
        ("/fifo", None, replace(PLUGIN, defaults=Defaults(logging=Logging.JOURNALD)), Logging.JOURNALD),
        ("/fifo", "nomad", replace(PLUGIN, defaults=Defaults(logging=Logging.JOURNALD)), Logging.NOMAD),
        ("/fifo", "nomad", replace(PLUGIN, disable_log_collection=True), Logging.JOURNALD),
        ("/dev/null", "nomad", PLUGIN, Logging.JOURNALD),
        ("", "nomad", PLUGIN, Logging.JOURNALD),
    ],
)
def test_the_console_goes_where_operator_job_and_nomad_agree(
    path: str, job: str | None, plugin: PluginConfig, logging: Logging
) -> None:
    task = task_config(logging=job)
    task.stdout_path = path
    assert logging_of(task, options_of(task), plugin) is logging


def test_a_group_with_a_network_of_its_own_has_its_namespace_and_its_name_servers() -> None:
    task = task_config()
    assert workload(task).namespace == ""
    task.dns.servers.append("192.0.2.53")
    with pytest.raises(InvalidRequestError, match="network.dns.servers"):
        workload(task)
    task.MergeFrom(in_group())
    made = workload(task)
    assert (made.namespace, [*map(str, made.resolver.servers)]) == ("/var/run/netns/group", ["192.0.2.53"])


def test_name_servers_of_a_job_reach_a_guest_by_dhcp() -> None:
    task = with_dns(servers=["9.9.9.9"])
    made = workload_of(task, options_of(task), PluginConfig(), 8, {NetworkName("default")})
    assert made.resolver.servers == (IPv4Address("9.9.9.9"),)
    with pytest.raises(InvalidRequestError, match="or a network with dhcp = true"):
        workload_of(task, options_of(task), PluginConfig(), 8, {NetworkName("other")})
