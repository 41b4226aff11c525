"""Doctor's facts and their verdicts."""

from dataclasses import replace

import pytest

from solo5_systemd.base.dependencies import DEPENDENCIES, Dependency
from solo5_systemd.base.names import Target
from solo5_systemd.host.checks import Fact, Host, Kernel, Verdict, facts
from solo5_systemd.unit.tender import Tender

HVT = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2)
SPT = Tender(path="/usr/bin/solo5-spt", target=Target.SPT, version="0.12.1", abi_version=2)
OLD = replace(HVT, abi_version=1)
GOOD = Host(
    systemd=257,
    booted=True,
    controllers=("cpuset", "cpu", "io", "memory", "pids"),
    missing=(),
    files={"/usr/lib/systemd/system/solo5.slice": True},
    user=True,
    settings="",
    tenders=(HVT, SPT),
    tender_paths=("/usr/bin",),
    devices={"/dev/kvm": "", "/dev/net/tun": ""},
    virtualization=True,
    store=("/var/lib/solo5/images", 1 << 30, 1 << 28),
    persistent_journal=True,
    kernel=Kernel(mmap_min_addr=65536, overcommit=0, dropping_chains=(), run_free=1 << 30),
)


def dependency(name: str) -> Dependency:
    return next(each for each in DEPENDENCIES if each.name == name)


def fact(host: Host, name: str) -> Fact:
    return next(fact for fact in facts(host) if fact.name == name)


def test_a_good_host_has_nothing_to_do() -> None:
    assert {(each.verdict, each.advice) for each in facts(GOOD)} == {(Verdict.OK, "")}
    assert fact(replace(GOOD, persistent_journal=False), "journal").verdict is Verdict.OK, "one in memory will do"
    assert fact(replace(GOOD, virtualization=False), "/dev/net/tun").verdict is Verdict.OK, "of no tap"
    assert "/a, /c" in fact(replace(GOOD, files={"/a": False, "/b": True, "/c": False}), "units and policy").advice


@pytest.mark.parametrize(
    ("change", "name", "value", "verdict"),
    [
        ({"systemd": 251}, "systemd", "251", Verdict.BROKEN),
        ({"systemd": None}, "systemd", "not found", Verdict.BROKEN),
        ({"booted": False}, "systemd", "257, not PID 1", Verdict.BROKEN),
        ({"controllers": None}, "cgroups", "version 1", Verdict.LIMITED),
        ({"controllers": ("cpu", "pids")}, "cgroups", "version 2 without cpuset, memory", Verdict.LIMITED),
        ({"missing": (dependency("nftables"),)}, "Python module nftables", "missing", Verdict.BROKEN),
        ({"missing": (dependency("pystemd"), dependency("grpc"))}, "Python module grpc", "missing", Verdict.BROKEN),
        ({"files": {"/a": False, "/b": True, "/c": False}}, "units and policy", "2 missing", Verdict.BROKEN),
        ({"drop_ins": "Remove solo5-.service.d/a.conf."}, "drop-ins", "change the units of tasks", Verdict.BROKEN),
        ({"user": False}, "user solo5", "missing", Verdict.BROKEN),
        ({"settings": "x.toml is wrong."}, "/etc/solo5", "x.toml is wrong.", Verdict.BROKEN),
        ({"tenders": (SPT,)}, "solo5-hvt", "not found", Verdict.LIMITED),
        ({"tenders": ()}, "solo5-spt", "not found", Verdict.BROKEN),
        ({"tenders": (OLD, SPT)}, "solo5-hvt", "/usr/bin/solo5-hvt has ABI 1", Verdict.LIMITED),
        (
            {"tenders": (replace(HVT, loads=("/lib", "/usr/lib"), loads_because="it uses dlopen"), SPT)},
            "solo5-hvt",
            "/usr/bin/solo5-hvt, version 0.12.1; its tasks can read all of /lib, /usr/lib: it uses dlopen",
            Verdict.LIMITED,
        ),
        ({"devices": {"/dev/kvm": "it is not there."}}, "/dev/kvm", "cannot be used", Verdict.LIMITED),
        (
            {"launcher": False},
            "solo5-confine",
            "not installed: a tender that its guest has taken over has all requests (ioctl) of its disks and taps",
            Verdict.LIMITED,
        ),
        ({"virtualization": False}, "/dev/kvm", "without svm or vmx", Verdict.LIMITED),
        ({"store": None}, "image store", "not created yet", Verdict.LIMITED),
        ({"store": ("/s", 63 << 20, 0)}, "image store", "/s, 63 MiB free", Verdict.BROKEN),
        ({"store": ("/s", 100 << 20, 101 << 20)}, "image store", "/s, 100 MiB free", Verdict.LIMITED),
    ],
)
def test_what_is_wrong_comes_with_advice(change: dict[str, object], name: str, value: str, verdict: Verdict) -> None:
    found = fact(replace(GOOD, **change), name)  # type: ignore[arg-type]
    assert (found.value, found.verdict) == (value, verdict)
    assert found.advice


def test_a_journal_namespace_that_cannot_be_used_is_in_the_way_of_every_task() -> None:
    usable = replace(GOOD, log_namespace="guests")
    assert fact(usable, "journal").value == "kept over a reboot; consoles in namespace guests"
    limited = fact(replace(usable, console_problem="journald stores none."), "journal")
    assert (limited.verdict, limited.advice) == (Verdict.LIMITED, "journald stores none.")
    broken = fact(replace(usable, namespace_problem="its journald is failed"), "journal")
    assert (broken.verdict, broken.value) == (Verdict.BROKEN, "no namespace guests: its journald is failed")
    assert "systemctl status systemd-journald@guests.service" in broken.advice
