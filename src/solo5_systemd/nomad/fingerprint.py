"""The fingerprint of the driver and its node: name, versions, capabilities, attributes and health."""

from collections.abc import Iterator
from dataclasses import replace

from solo5_systemd.base.names import Target
from solo5_systemd.host.checks import Fact, Host, Verdict, cgroups, facts, filter_problem, filter_remedy, modules
from solo5_systemd.image.manifest import ABI_VERSION
from solo5_systemd.nomad.plugin_config import NAME, WHERE, PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.structs_pb2 import Attribute
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit.confinement import KVM

HANDLE_VERSION = 1
"""The version of TaskHandle. Nomad takes zero for a handle from before 0.9."""


def capabilities(config: PluginConfig) -> wire.DriverCapabilities:
    """Return the driver's capabilities. Nomad itself refuses a job that needs others.

    File system isolation is NONE, so that `NOMAD_TASK_DIR` and the like are host paths, as `unikernel` and `source`
    need them; a unikernel sees no file system of the host anyway. GROUP stands for `bridge`, `cni/NAME` and `none`,
    whose namespaces Nomad makes. Each mount is a disk.
    """
    return wire.DriverCapabilities(
        send_signals=True,
        exec=False,
        fs_isolation=wire.DriverCapabilities.NONE,
        network_isolation_modes=[wire.NetworkIsolationSpec.HOST, wire.NetworkIsolationSpec.GROUP],
        must_create_network=False,
        mount_configs=wire.DriverCapabilities.ANY_MOUNTS,
        disable_log_collection=config.disable_log_collection,
    )


UNDETECTED = wire.FingerprintResponse.UNDETECTED
UNHEALTHY = wire.FingerprintResponse.UNHEALTHY
HEALTHY = wire.FingerprintResponse.HEALTHY

HEALTHY_INTERVAL_S = 30.0
"""Seconds between two fingerprints, as in Nomad's own drivers."""

UNHEALTHY_INTERVAL_S = 5.0
"""The same while the driver is unhealthy, so that it recovers soon."""

VOLUMES = "file-system,block-device"
"""The attachment modes of volumes that can be disks."""

CONFINEMENT = "user,capabilities,devices,files,system-calls,ip"
"""The sandbox of a service, with `arguments` if solo5-confine is installed. A scope, which PID 1 does not execute, has
the first two, and `arguments`."""


def fingerprint_of(host: Host, settings: Settings, config: PluginConfig, version: str) -> wire.FingerprintResponse:
    """Return the fingerprint of a probed host. A broken fact, as of `solo5ctl doctor`, makes it unhealthy."""
    broken = [fact for fact in (*facts(host), *_broken_for_scheduler(host, config)) if fact.verdict is Verdict.BROKEN]
    return wire.FingerprintResponse(
        attributes={key: _attribute(value) for key, value in _attributes(host, settings, config, version)},
        health=UNHEALTHY if broken else HEALTHY,
        health_description=_sentence(broken[0]) if broken else "Healthy",
    )


def failed(reason: str, version: str) -> wire.FingerprintResponse:
    """Return the fingerprint of a host that could not be probed: unhealthy, with the reason."""
    attributes = {_key("version"): _attribute(version)}
    return wire.FingerprintResponse(attributes=attributes, health=UNHEALTHY, health_description=reason)


def after(last: wire.FingerprintResponse, found: wire.FingerprintResponse) -> wire.FingerprintResponse:
    """Return a fingerprint with the attributes that the last one had as empty ones, or they would stay on the node."""
    gone = dict.fromkeys(last.attributes.keys() - found.attributes.keys(), _attribute(""))
    sent = wire.FingerprintResponse(attributes=gone)
    sent.MergeFrom(found)
    return sent


def _attribute(value: str | bool | int) -> Attribute:
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return Attribute(bool_val=value)
    return Attribute(int_val=value) if isinstance(value, int) else Attribute(string_val=value)


def _key(name: str) -> str:
    return f"driver.{NAME}.{name}"


def _sentence(fact: Fact) -> str:
    return f"{fact.name}: {fact.value.rstrip('.')}. {fact.advice}".rstrip()


def _broken_for_scheduler(host: Host, config: PluginConfig) -> Iterator[Fact]:
    """Yield the facts that a person at the host can work around, and a scheduler cannot.

    Without KVM a node whose only tender is hvt runs nothing, without nftables no task gets its network, and without
    controllers a task may use more than the scheduler has reserved for it.
    """
    limits = cgroups(host)
    if limits.verdict is Verdict.LIMITED and not config.allow_missing_controllers:
        advice = f"{limits.advice.rstrip('.')}, or state that it is meant: {WHERE}.allow_missing_controllers = true."
        yield replace(limits, verdict=Verdict.BROKEN, advice=advice)
    if host.kernel.dropping_chains is None:
        advice = "Load the kernel module nf_tables: modprobe nf_tables"
        yield Fact(name="nftables", value="cannot be queried", verdict=Verdict.BROKEN, advice=advice)
    if host.kernel.missing_modules:
        yield replace(modules(host.kernel), verdict=Verdict.BROKEN)
    problem = host.devices.get(KVM, "")
    if problem and host.tenders and all(tender.target is Target.HVT for tender in host.tenders):
        yield Fact(name=KVM, value="cannot be used", verdict=Verdict.BROKEN, advice=problem)


def _attributes(
    host: Host, settings: Settings, config: PluginConfig, version: str
) -> Iterator[tuple[str, str | bool | int]]:
    yield _key("version"), version
    if host.systemd is not None:
        yield _key("systemd"), host.systemd
    for target in Target:
        tender = next((t for t in host.tenders if t.target is target and t.abi_version == ABI_VERSION), None)
        yield _key(target.value), tender is not None
        if tender is not None:
            yield _key(f"{target}.version"), tender.version
            yield _key(f"{target}.abi"), tender.abi_version
            yield _key(f"{target}.path"), tender.path
        else:
            [problem] = [_sentence(fact) for fact in facts(host) if fact.name == f"solo5-{target}"]
            yield _key(f"{target}.problem"), problem
    problem = host.devices.get(KVM, "")
    yield _key("kvm"), not problem
    if problem:
        yield _key("kvm.problem"), problem
    yield _key("cgroup"), "v2" if host.controllers is not None else "v1"
    limits = cgroups(host)
    if limits.verdict is Verdict.LIMITED:
        yield _key("cgroup.problem"), f"limits do not hold: {limits.value}"
    yield _key("confinement"), f"{CONFINEMENT},arguments" if host.launcher else CONFINEMENT
    yield _key("block"), True
    yield _key("volumes"), VOLUMES
    offered = [n.name for n in settings.networks if not config.networks or n.name in config.networks]
    yield _key("networks"), ",".join(offered)
    if problem := filter_problem(host.kernel):
        yield _key("networks.problem"), f"{problem}: {filter_remedy(host.kernel)}"
    if dropped := " ".join(_sentence(fact) for fact in facts(host) if fact.name.startswith("forwarding")):
        yield _key("forwarding.problem"), dropped
    if host.console_problem:
        yield _key("logging.problem"), host.console_problem
    yield _key("logging"), "journald" if config.disable_log_collection else "nomad,journald"
